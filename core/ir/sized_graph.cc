// SPDX-License-Identifier: Apache-2.0
#include "core/ir/sized_graph.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace keirin {
namespace {

using Wide = __int128;
using Sizes = std::vector<int64_t>;

constexpr uint8_t kMostOfOne = 2;       // exponent of a size in a monomial
constexpr int kMostOfAll = 4;           // sum of exponents, where few sizes are free
constexpr size_t kFewSizes = 3;
constexpr int kMostOfMany = 2;
constexpr double kWholeReals = 9007199254740992;  // 2^53: whole numbers up to it have a double each
constexpr int64_t kMostNumber = int64_t{1} << 62;

// Calls f with each number of the graph that sizes may decide, an int64_t& or a double&, always in the same order.
template <class G, class F>
void visit_numbers(G& graph, const F& f) {
  for (auto& value : graph.values) {
    for (auto& size : value.type.sizes) f(size);
    for (auto& stride : value.type.strides) f(stride);
    if (value.range) f(value.range->low), f(value.range->high);
  }
  for (auto& op : graph.ops)
    for (auto& attr : op.attrs) {
      if (auto* i = std::get_if<int64_t>(&attr.value)) f(*i);
      else if (auto* d = std::get_if<double>(&attr.value)) f(*d);
      else if (auto* list = std::get_if<Dims>(&attr.value))
        for (auto& each : *list) f(each);
    }
  for (auto& body : graph.bodies) visit_numbers(body, f);
}

// A list of numbers may have another length where sizes are others; lengths stay.
Graph without_numbers(Graph graph) {
  visit_numbers(graph, [](auto& number) { number = 0; });
  return graph;
}

// Of graphs without numbers.
std::string difference_of(const Graph& a, const Graph& b) {
  if (a == b) return {};
  if (a.ops.size() != b.ops.size()) return std::to_string(a.ops.size()) + " and " + std::to_string(b.ops.size()) + " operators";
  for (size_t i = 0; i < a.ops.size(); ++i)
    if (!(a.ops[i] == b.ops[i])) return "at " + a.ops[i].origin.str();
  for (size_t i = 0; i < std::min(a.values.size(), b.values.size()); ++i) {
    const Value& value = a.values[i];
    if (!(value == b.values[i])) return "what " + (value.producer == kNone ? value.name.str() : a.ops[value.producer].origin.str()) + " is";
  }
  return "in what it returns";
}

// What one number is in each of the graphs: whole, or the bits of a double.
struct Column {
  std::vector<int64_t> of;
  bool real = false;
  auto operator<=>(const Column&) const = default;
};

std::optional<Wide> power_of(const Sizes& sizes, const std::vector<uint8_t>& exponents) {
  Wide out = 1;
  for (size_t i = 0; i < sizes.size(); ++i)
    for (uint8_t k = 0; k < exponents[i]; ++k) {
      out *= sizes[i];
      if (out > kMostNumber || out < -kMostNumber) return std::nullopt;
    }
  return out;
}

// All monomials, those of few factors first: what a number follows is the first that fits.
std::vector<std::vector<uint8_t>> monomials_of(size_t num_sizes) {
  const int most = num_sizes <= kFewSizes ? kMostOfAll : kMostOfMany;
  std::vector<std::vector<uint8_t>> out{std::vector<uint8_t>(num_sizes, 0)};
  for (size_t i = 0; i < num_sizes; ++i)
    for (size_t k = out.size(); k-- > 0;)
      for (uint8_t e = 1; e <= kMostOfOne; ++e) {
        std::vector<uint8_t> with = out[k];
        with[i] = e;
        if (std::accumulate(with.begin(), with.end(), 0) <= most) out.push_back(std::move(with));
      }
  std::ranges::stable_sort(out, {}, [](const auto& each) { return std::accumulate(each.begin(), each.end(), 0); });
  return out;
}

}  // namespace

// Finds what columns follow.
class SizedGraph::Finder {
 public:
  Finder(const std::vector<Sizes>& sizes, SizedGraph& out) : sizes_(sizes), out_(out) {}

  // False: too large.
  bool begin() {
    out_.monomials_ = monomials_of(sizes_[0].size());
    powers_.resize(out_.monomials_.size());
    for (size_t m = 0; m < powers_.size(); ++m)
      for (const Sizes& each : sizes_) {
        const std::optional<Wide> power = power_of(each, out_.monomials_[m]);
        if (!power) return false;
        powers_[m].push_back(*power);
      }
    return true;
  }

  // The place of the number that is this in the graphs; nothing: it follows nothing.
  std::optional<Place> place_of(const Column& column, size_t number) {
    const auto known = known_.find(column);
    const std::optional<Place> found = known != known_.end() ? known->second : known_[column] = find(column);
    if (!found) return std::nullopt;
    return Place{number, found->polynomial, found->as};
  }

 private:
  std::optional<Place> find(const Column& column) {
    if (!column.real) return follows(column.of, As::kWhole);
    std::vector<int64_t> whole, reciprocal;
    bool in_f32 = true, in_f64 = true;
    for (const int64_t bits : column.of) {
      const double x = std::bit_cast<double>(bits), inverse = std::round(1 / x);
      if (std::abs(x) < kWholeReals && x == std::trunc(x)) whole.push_back(static_cast<int64_t>(x));
      if (!(std::abs(inverse) < kWholeReals) || inverse == 0) continue;
      reciprocal.push_back(static_cast<int64_t>(inverse));
      in_f64 &= 1 / inverse == x;
      in_f32 &= static_cast<double>(1 / static_cast<float>(inverse)) == x;
    }
    if (whole.size() == column.of.size()) return follows(whole, As::kReal);
    if (reciprocal.size() != column.of.size() || (!in_f64 && !in_f32)) return std::nullopt;
    return follows(reciprocal, in_f64 ? As::kReciprocal : As::kReciprocalF32);
  }

  std::optional<Place> follows(const std::vector<int64_t>& numbers, As as) {
    const std::optional<Polynomial> found = polynomial_of(numbers);
    if (!found) return std::nullopt;
    auto at = std::ranges::find(out_.polynomials_, *found);
    if (at == out_.polynomials_.end()) at = out_.polynomials_.insert(at, *found);
    return Place{0, static_cast<size_t>(at - out_.polynomials_.begin()), as};
  }

  std::optional<Polynomial> polynomial_of(const std::vector<int64_t>& numbers) const {
    for (size_t a = 0; a < powers_.size(); ++a)
      if (const auto found = reduced(numbers[0], 0, powers_[a][0], a, a); found && fits(*found, numbers)) return found;
    for (size_t a = 0; a < powers_.size(); ++a)
      for (size_t b = a + 1; b < powers_.size(); ++b)
        if (const auto found = through(numbers, a, b); found && fits(*found, numbers)) return found;
    return std::nullopt;
  }

  // By Cramer's rule, of the first two graphs in which the monomials are not in the same ratio.
  std::optional<Polynomial> through(const std::vector<int64_t>& numbers, size_t a, size_t b) const {
    for (size_t k = 1; k < numbers.size(); ++k) {
      const auto det = [&](Wide p, Wide q, Wide r, Wide s) -> std::optional<Wide> {
        Wide ps, qr, out;
        if (__builtin_mul_overflow(p, s, &ps) || __builtin_mul_overflow(q, r, &qr) || __builtin_sub_overflow(ps, qr, &out)) return {};
        return out;
      };
      const auto divisor = det(powers_[a][0], powers_[b][0], powers_[a][k], powers_[b][k]);
      if (!divisor) return std::nullopt;
      if (*divisor == 0) continue;
      const auto first = det(numbers[0], powers_[b][0], numbers[k], powers_[b][k]);
      const auto second = det(powers_[a][0], numbers[0], powers_[a][k], numbers[k]);
      if (!first || !second) return std::nullopt;
      return reduced(*first, *second, *divisor, a, b);
    }
    return std::nullopt;
  }

  static std::optional<Polynomial> reduced(Wide first, Wide second, Wide divisor, size_t a, size_t b) {
    if (divisor == 0) return std::nullopt;
    const auto gcd = [](Wide x, Wide y) {
      x = x < 0 ? -x : x, y = y < 0 ? -y : y;
      while (y != 0) std::swap(x %= y, y);
      return x;
    };
    Wide by = gcd(gcd(first, second), divisor);
    if (divisor < 0) by = -by;
    first /= by, second /= by, divisor /= by;
    constexpr Wide kMost = int64_t{1} << 31;  // of a coefficient: a program's constants are smaller
    if (first > kMost || first < -kMost || second > kMost || second < -kMost || divisor > kMost) return std::nullopt;
    return Polynomial{static_cast<int64_t>(first), static_cast<int64_t>(second), static_cast<int64_t>(divisor), a, b};
  }

  bool fits(const Polynomial& p, const std::vector<int64_t>& numbers) const {
    for (size_t k = 0; k < numbers.size(); ++k)
      if (p.first * powers_[p.a][k] + p.second * powers_[p.b][k] != static_cast<Wide>(numbers[k]) * p.divisor) return false;
    return true;
  }

  const std::vector<Sizes>& sizes_;
  SizedGraph& out_;
  std::vector<std::vector<Wide>> powers_;  // by monomial and graph
  std::map<Column, std::optional<Place>> known_;
};

Result<SizedGraph> SizedGraph::of(const std::vector<Sizes>& sizes, const std::vector<const Graph*>& graphs) {
  const auto unsupported = [](std::string why) { return Status(Code::k_unsupported, std::move(why)); };
  if (graphs.empty() || graphs.size() != sizes.size()) return unsupported("no graphs to learn of");
  SizedGraph out;
  out.base_ = *graphs[0];
  Finder finder(sizes, out);
  if (!finder.begin()) return unsupported("the sizes are too large");
  std::vector<Column> columns;
  const Graph structure = without_numbers(out.base_);
  for (const Graph* graph : graphs) {
    if (const std::string where = difference_of(structure, without_numbers(*graph)); !where.empty())
      return unsupported("the graph has another structure at other sizes: " + where);
    size_t at = 0;
    visit_numbers(*graph, [&](const auto& number) {
      if (graph == graphs[0]) columns.emplace_back();
      if constexpr (std::is_same_v<std::decay_t<decltype(number)>, double>) {
        columns[at].real = true;
        columns[at++].of.push_back(std::bit_cast<int64_t>(number));
      } else {
        columns[at++].of.push_back(number);
      }
    });
  }
  for (size_t i = 0; i < columns.size(); ++i) {
    const std::vector<int64_t>& of = columns[i].of;
    if (std::ranges::all_of(of, [&](int64_t each) { return each == of[0]; })) continue;
    const std::optional<Place> place = finder.place_of(columns[i], i);
    if (!place) {
      const auto text = [&](int64_t each) {
        return columns[i].real ? std::to_string(std::bit_cast<double>(each)) : std::to_string(each);
      };
      const auto other = std::ranges::find_if(of, [&](int64_t each) { return each != of[0]; });
      return unsupported("a number that is " + text(of[0]) + " and " + text(*other) + " follows the sizes in no known way");
    }
    out.places_.push_back(*place);
  }
  return out;
}

std::string SizedGraph::difference(const Graph& a, const Graph& b) { return difference_of(without_numbers(a), without_numbers(b)); }

Result<Graph> SizedGraph::at(const Sizes& sizes) const {
  const auto unsupported = [](const char* why) { return Status(Code::k_unsupported, why); };
  if (!monomials_.empty() && sizes.size() != monomials_[0].size()) return unsupported("these are not as many sizes");
  std::vector<int64_t> numbers;
  for (const Polynomial& p : polynomials_) {
    const std::optional<Wide> a = power_of(sizes, monomials_[p.a]), b = power_of(sizes, monomials_[p.b]);
    if (!a || !b) return unsupported("the sizes are too large");
    const Wide sum = p.first * *a + p.second * *b;
    if (sum % p.divisor != 0) return unsupported("a number would not be whole at these sizes");
    const Wide number = sum / p.divisor;
    if (number > kMostNumber || number < -kMostNumber) return unsupported("the sizes are too large");
    numbers.push_back(static_cast<int64_t>(number));
  }
  Graph out = base_;
  size_t number = 0;
  auto place = places_.begin();
  bool whole = true;
  visit_numbers(out, [&](auto& each) {
    if (place == places_.end() || place->number != number++) return;
    const int64_t is = numbers[place->polynomial];
    if constexpr (std::is_same_v<std::decay_t<decltype(each)>, double>) {
      const bool inverse = place->as == As::kReciprocal || place->as == As::kReciprocalF32;
      whole &= std::abs(static_cast<double>(is)) < kWholeReals && (!inverse || is != 0);
      each = place->as == As::kReciprocal      ? 1 / static_cast<double>(is)
             : place->as == As::kReciprocalF32 ? static_cast<double>(1 / static_cast<float>(is))
                                               : static_cast<double>(is);
    } else {
      each = is;
    }
    ++place;
  });
  if (!whole) return unsupported("a number would not be a real one at these sizes");
  return out;
}

}  // namespace keirin
