// SPDX-License-Identifier: Apache-2.0
#include "core/ir/sized_graph.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace keirin {
namespace {

using sizes::Wide;
using Sizes = std::vector<int64_t>;

// Calls f with each number of the graph that sizes may decide, an int64_t& or a double&, always in the same order.
template <class G, class F>
void visit_numbers(G& graph, const F& f) {
  for (auto& value : graph.values) {
    for (auto& size : value.type.sizes) f(size);
    for (auto& stride : value.type.strides) f(stride);
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

// What passes found of the values and have used by now. A logarithm's bounds follow the sizes in no way that is known here.
void drop_ranges(Graph& graph) {
  for (Value& value : graph.values) value.range.reset();
  for (Graph& body : graph.bodies) drop_ranges(body);
}

// A list of numbers may have another length where sizes are others; lengths stay.
Graph without_numbers(Graph graph) {
  visit_numbers(graph, [](auto& number) { number = 0; });
  drop_ranges(graph);
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
  Wide out;
  if (!sizes::power_of(sizes.data(), exponents.data(), sizes.size(), out)) return std::nullopt;
  return out;
}

}  // namespace

// Finds what columns follow.
class SizedGraph::Finder {
 public:
  Finder(const std::vector<Sizes>& sizes, SizedGraph& out) : sizes_(sizes), out_(out) {}

  // False: too large.
  bool begin() {
    const size_t num_sizes = sizes_[0].size();
    if (num_sizes > sizes::kMostSizes) return false;
    sizes::each_monomial(num_sizes, [&](const uint8_t* each) { out_.monomials_.emplace_back(each, each + num_sizes); });
    for (const std::vector<uint8_t>& monomial : out_.monomials_)
      for (const Sizes& each : sizes_) {
        const std::optional<Wide> power = power_of(each, monomial);
        if (!power) return false;
        powers_.push_back(*power);
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
    for (const As as : {As::kReal, As::kReciprocal, As::kReciprocalF32}) {
      std::vector<int64_t> numbers(column.of.size());
      const auto reads = [&](const int64_t& bits) { return sizes::read_as(as, bits, numbers[&bits - column.of.data()]); };
      if (std::ranges::all_of(column.of, reads)) return follows(numbers, as);
    }
    return std::nullopt;
  }

  std::optional<Place> follows(const std::vector<int64_t>& numbers, As as) {
    Polynomial found;
    if (!sizes::polynomial_of(numbers.data(), numbers.size(), powers_.data(), out_.monomials_.size(), found)) return std::nullopt;
    auto at = std::ranges::find(out_.polynomials_, found);
    if (at == out_.polynomials_.end()) at = out_.polynomials_.insert(at, found);
    return Place{0, static_cast<size_t>(at - out_.polynomials_.begin()), as};
  }

  const std::vector<Sizes>& sizes_;
  SizedGraph& out_;
  std::vector<Wide> powers_;  // by monomial, then graph
  std::map<Column, std::optional<Place>> known_;
};

Result<SizedGraph> SizedGraph::of(const std::vector<Sizes>& sizes, const std::vector<const Graph*>& graphs) {
  const auto unsupported = [](std::string why) { return Status(Code::k_unsupported, std::move(why)); };
  if (graphs.empty() || graphs.size() != sizes.size()) return unsupported("no graphs to learn of");
  SizedGraph out;
  out.base_ = *graphs[0];
  drop_ranges(out.base_);
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
    int64_t number;
    if (!sizes::value_of(p, *a, *b, number)) return unsupported("a number would not be whole at these sizes, or too large");
    numbers.push_back(number);
  }
  Graph out = base_;
  size_t number = 0;
  auto place = places_.begin();
  bool whole = true;
  visit_numbers(out, [&](auto& each) {
    if (place == places_.end() || place->number != number++) return;
    const int64_t is = numbers[place->polynomial];
    if constexpr (std::is_same_v<std::decay_t<decltype(each)>, double>) {
      int64_t bits = 0;
      whole &= sizes::write_as(place->as, is, bits);
      each = std::bit_cast<double>(bits);
    } else {
      each = is;
    }
    ++place;
  });
  if (!whole) return unsupported("a number would not be a real one at these sizes");
  return out;
}

}  // namespace keirin
