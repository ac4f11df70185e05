// SPDX-License-Identifier: Apache-2.0
#include "plugins/codegen/plan/sized_plans.h"

#include <string.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "abi/graph.h"
#include "abi/polynomial.h"

namespace keirin::codegen {
namespace {

using sizes::As;
using sizes::Polynomial;
using sizes::Wide;
using Numbers = std::vector<int64_t>;  // whole, or the bits of a double

constexpr size_t kLeastSamples = 12, kMostSamples = 32;
constexpr size_t kMostVariables = 4;
constexpr size_t kMostFamilies = 16, kMostStructures = 8;  // of regions, and of plans of one
// Of a structure's answers: the more were right, the fewer. Each takes a call as long as planning does, so of a thousand calls few may.
bool is_doubted(uint64_t answer) { return std::has_single_bit(answer) || answer % 1024 == 0; }

// Region bytes, apart: sizes, strides and attributes are numbers.
struct Bytes {
  std::string structure;
  Numbers numbers;
};

std::optional<Bytes> split(std::span<const uint8_t> region) {
  krn_graph_header header;
  if (region.size() < sizeof(header)) return std::nullopt;
  memcpy(&header, region.data(), sizeof(header));
  Bytes out;
  out.structure.append(reinterpret_cast<const char*>(region.data()), offsetof(krn_graph_header, total_bytes));
  size_t at = sizeof(header);
  for (uint32_t s = 0; s < header.num_sections; ++s, at += sizeof(krn_graph_section)) {
    krn_graph_section section;
    if (at + sizeof(section) > region.size()) return std::nullopt;
    memcpy(&section, region.data() + at, sizeof(section));
    if (section.flags & KRN_SECTION_NOT_HASHED) continue;
    if (section.offset > region.size() || section.count > region.size() || section.stride > region.size() ||
        section.count * section.stride > region.size() - section.offset)
      return std::nullopt;
    out.structure.append(reinterpret_cast<const char*>(&section), offsetof(krn_graph_section, offset));
    out.structure.append(reinterpret_cast<const char*>(&section.count), sizeof(section.count));
    const uint8_t* data = region.data() + section.offset;
    const size_t bytes = section.count * section.stride;
    const bool is_dims = section.id == KRN_SECTION_DIMS || section.id == KRN_SECTION_WORDS;
    const bool is_attrs = section.id == KRN_SECTION_ATTRS && section.stride == sizeof(krn_gattr);
    if (is_dims && section.stride == sizeof(int64_t)) {
      const size_t first = out.numbers.size();
      out.numbers.resize(first + section.count);
      if (bytes) memcpy(out.numbers.data() + first, data, bytes);
    } else if (is_attrs) {
      for (size_t i = 0; i < section.count; ++i) {
        krn_gattr attr;
        memcpy(&attr, data + i * sizeof(attr), sizeof(attr));
        out.structure.append(reinterpret_cast<const char*>(&attr), offsetof(krn_gattr, bits));
        out.numbers.push_back(static_cast<int64_t>(attr.bits));
      }
    } else {
      out.structure.append(reinterpret_cast<const char*>(data), bytes);
    }
  }
  return out;
}

// Calls f with each number of a plan that sizes may decide, always in the same order: an int64_t&, or a double&, or the bits of a literal.
template <class Parts, class F>
void visit_numbers(Parts& parts, const F& f) {
  const auto all = [&](auto& list) {
    for (auto& each : list) f(each);
  };
  const auto of_tensor = [&](auto& d) { all(d.sizes), all(d.strides), f(d.offset); };
  const auto of_csr = [&](auto& csr) { f(csr.index_offset), f(csr.num_rows), f(csr.num_edges); };
  const auto of_form = [&](auto& form) { f(form.offset), all(form.coeff); };
  for (auto& buffer : parts.buffers) f(buffer.bytes);
  for (auto& kernel : parts.kernels) {
    for (auto& axis : kernel.axes) f(axis.size);
    of_csr(kernel.csr);
    for (auto& access : kernel.accesses) {
      of_form(access.index);
      for (auto& indirect : access.indirects) f(indirect.stride), f(indirect.limit);
      for (auto& guard : access.guards) of_form(guard.form), f(guard.limit);
    }
    for (auto& node : kernel.dag.nodes)
      if (node.prim == Prim::kLiteral) f(node.imm);
  }
  for (auto& anchor : parts.anchors) {
    for (auto& d : anchor.operands) of_tensor(d);
    for (auto& d : anchor.results) of_tensor(d);
    for (auto& post : anchor.post_ops) of_tensor(post.operand), f(post.alpha), f(post.beta);
    all(anchor.stride), all(anchor.padding), all(anchor.dilation), all(anchor.output_padding), all(anchor.kernel), all(anchor.sizes);
    f(anchor.groups), f(anchor.layers), f(anchor.divisor), f(anchor.scale);
  }
  for (auto& csr : parts.csrs) of_csr(csr);
}

int64_t bits_of(int64_t number) { return number; }
int64_t bits_of(uint64_t number) { return static_cast<int64_t>(number); }
int64_t bits_of(double number) { return std::bit_cast<int64_t>(number); }
void set_bits(int64_t& number, int64_t bits) { number = bits; }
void set_bits(uint64_t& number, int64_t bits) { number = static_cast<uint64_t>(bits); }
void set_bits(double& number, int64_t bits) { number = std::bit_cast<double>(bits); }

Numbers numbers_of(const PlanParts& parts) {
  Numbers out;
  visit_numbers(parts, [&](const auto& number) { out.push_back(bits_of(number)); });
  return out;
}

PlanParts without_numbers(PlanParts parts) {
  for (Kernel& kernel : parts.kernels) kernel.dag.close();
  visit_numbers(parts, [](auto& number) { number = 0; });
  return parts;
}

struct Place {
  size_t number = 0;
  size_t polynomial = 0;
  As as = As::kWhole;
};

// What columns of numbers, one for each sample, follow.
class Formula {
 public:
  // False: something follows nothing. `of_region` and `of_plan`: by sample.
  bool solve(const std::vector<const Numbers*>& of_region, const std::vector<const Numbers*>& of_plan) {
    count_ = of_region.size();
    // Variables are numbers of the region that follow none before them, the smaller first.
    std::map<Numbers, size_t> columns;
    for (size_t i = 0; i < of_region[0]->size(); ++i) columns.emplace(column(of_region, i), i);
    std::vector<std::pair<Numbers, size_t>> varying;
    for (auto& [column, first] : columns)
      if (varies(column)) varying.emplace_back(column, first);
    std::ranges::stable_sort(varying, {}, [](const auto& each) { return *std::ranges::max_element(each.first); });
    add_powers();
    for (const auto& [column, first] : varying) {
      if (find(column)) continue;
      if (variables_.size() == kMostVariables || *std::ranges::min_element(column) < 0) return false;
      variables_.push_back(first);
      of_variables_.push_back(column);
      known_.clear();
      add_powers();
    }
    return places(of_region, region_) && places(of_plan, plan_);
  }

  // Of what was solved: numbers that do not vary.
  void remember(const Numbers& region, const Numbers& plan) {
    base_region_ = region;
    base_plan_ = plan;
  }

  bool of_equal_variables(const Formula& other) const { return variables_ == other.variables_; }
  // What the variables are in these numbers of a region.
  Numbers point(const Numbers& region) const {
    Numbers out;
    for (const size_t variable : variables_) out.push_back(region[variable]);
    return out;
  }

  // The numbers of a plan for these of a region; false: it is another region than those were.
  bool at(const Numbers& region, Numbers& plan) const {
    const Numbers sizes = point(region);
    std::vector<int64_t> values;
    for (const Polynomial& p : polynomials_) {
      Wide a, b;
      int64_t value;
      if (!sizes::power_of(sizes.data(), monomials_[p.a].data(), sizes.size(), a) ||
          !sizes::power_of(sizes.data(), monomials_[p.b].data(), sizes.size(), b) || !sizes::value_of(p, a, b, value))
        return false;
      values.push_back(value);
    }
    const auto write = [&](const std::vector<Place>& places, Numbers& numbers) {
      return std::ranges::all_of(places, [&](const Place& each) {
        return sizes::write_as(each.as, values[each.polynomial], numbers[each.number]);
      });
    };
    Numbers expected = base_region_;
    plan = base_plan_;
    return write(region_, expected) && expected == region && write(plan_, plan);
  }

 private:
  static Numbers column(const std::vector<const Numbers*>& samples, size_t i) {
    Numbers out;
    for (const Numbers* each : samples) out.push_back((*each)[i]);
    return out;
  }
  static bool varies(const Numbers& column) {
    return std::ranges::any_of(column, [&](int64_t each) { return each != column[0]; });
  }

  void add_powers() {
    monomials_.clear(), powers_.clear();
    const size_t num = variables_.size();
    sizes::each_monomial(num, [&](const uint8_t* exponents) {
      std::vector<Wide> powers;
      for (size_t k = 0; k < count_; ++k) {
        std::vector<int64_t> at;
        for (const Numbers& each : of_variables_) at.push_back(each[k]);
        if (!sizes::power_of(at.data(), exponents, num, powers.emplace_back())) return;  // nothing is as large
      }
      monomials_.emplace_back(exponents, exponents + num);
      powers_.insert(powers_.end(), powers.begin(), powers.end());
    });
  }

  std::optional<std::pair<Polynomial, As>> find(const Numbers& column) {
    const auto known = known_.find(column);
    if (known != known_.end()) return known->second;
    return known_[column] = search(column);
  }

  std::optional<std::pair<Polynomial, As>> search(const Numbers& column) const {
    const auto follows = [&](const Numbers& numbers, As as) -> std::optional<std::pair<Polynomial, As>> {
      Polynomial p;
      if (!sizes::polynomial_of(numbers.data(), numbers.size(), powers_.data(), monomials_.size(), p)) return std::nullopt;
      return std::pair(p, as);
    };
    for (const As as : {As::kWhole, As::kReal, As::kReciprocal, As::kReciprocalF32}) {
      Numbers numbers(column.size());
      const auto reads = [&](const int64_t& bits) { return sizes::read_as(as, bits, numbers[&bits - column.data()]); };
      if (!std::ranges::all_of(column, reads)) continue;
      if (auto found = follows(numbers, as)) return found;
    }
    return std::nullopt;
  }

  bool places(const std::vector<const Numbers*>& samples, std::vector<Place>& out) {
    for (size_t i = 0; i < samples[0]->size(); ++i) {
      const Numbers of = column(samples, i);
      if (!varies(of)) continue;
      const auto found = find(of);
      if (!found) return false;
      auto at = std::ranges::find(polynomials_, found->first);
      if (at == polynomials_.end()) at = polynomials_.insert(at, found->first);
      out.push_back({i, static_cast<size_t>(at - polynomials_.begin()), found->second});
    }
    return true;
  }

  size_t count_ = 0;
  std::vector<size_t> variables_;      // by number of the region's
  std::vector<Numbers> of_variables_;  // by sample
  std::vector<std::vector<uint8_t>> monomials_;
  std::vector<Wide> powers_;
  std::map<Numbers, std::optional<std::pair<Polynomial, As>>> known_;
  std::vector<Polynomial> polynomials_;
  std::vector<Place> region_, plan_;
  Numbers base_region_, base_plan_;
};

// In every size.
bool is_below(const Numbers& a, const Numbers& b) {
  return std::ranges::equal(a, b, [](int64_t x, int64_t y) { return x <= y; });
}

}  // namespace

// Regions whose bytes are equal but for numbers, and their plans.
struct SizedPlans::Family {
  // Plans that are equal but for numbers.
  struct Structure {
    PlanParts parts;  // without numbers
    std::vector<std::pair<Numbers, Numbers>> samples;  // of the region, of the plan
    std::optional<Formula> formula;
    std::vector<Numbers> lows, highs;  // points that were planned so: the least, the greatest
    bool given_up = false;
    unsigned answers = 0;

    void give_up() {
      given_up = true;
      formula.reset();
      samples.clear(), lows.clear(), highs.clear();
    }

    void take(const Numbers& region, const Numbers& plan) {
      if (given_up || std::ranges::any_of(samples, [&](const auto& each) { return each.first == region; })) return;
      if (Numbers said; formula && formula->at(region, said) && said == plan) return add_point(formula->point(region));
      if (samples.size() == kMostSamples) samples.erase(samples.begin());
      samples.emplace_back(region, plan);
      if (samples.size() < kLeastSamples) return;
      std::vector<const Numbers*> of_region, of_plan;
      for (const auto& [its, made] : samples) of_region.push_back(&its), of_plan.push_back(&made);
      Formula found;
      if (!found.solve(of_region, of_plan)) {
        // What was found holds where it was found: this is another region (another constant), or beyond a threshold.
        if (formula) samples.pop_back();
        else if (samples.size() == kMostSamples) give_up();
        return;
      }
      found.remember(region, plan);
      formula = std::move(found);
      lows.clear(), highs.clear();
      for (const auto& [its, made] : samples) add_point(formula->point(its));
    }

    void add_point(const Numbers& point) {
      if (std::ranges::none_of(lows, [&](const Numbers& each) { return is_below(each, point); })) {
        std::erase_if(lows, [&](const Numbers& each) { return is_below(point, each); });
        lows.push_back(point);
      }
      if (std::ranges::none_of(highs, [&](const Numbers& each) { return is_below(point, each); })) {
        std::erase_if(highs, [&](const Numbers& each) { return is_below(each, point); });
        highs.push_back(point);
      }
    }
  };

  // Whether sizes like these lie between two of this structure with none of another structure between them: what chooses structures are
  // thresholds, of sizes or of products of them.
  bool is_between(const Structure& its, const Numbers& region) const {
    const Numbers point = its.formula->point(region);
    for (const Numbers& low : its.lows) {
      if (!is_below(low, point)) continue;
      for (const Numbers& high : its.highs)
        if (is_below(point, high) && !has_other(its, low, high)) return true;
    }
    return false;
  }

  std::string structure;  // of the bytes, and what else was asked
  std::vector<std::unique_ptr<Structure>> plans;

 private:
  bool has_other(const Structure& its, const Numbers& low, const Numbers& high) const {
    const auto inside = [&](const Numbers& point) { return is_below(low, point) && is_below(point, high); };
    return std::ranges::any_of(plans, [&](const auto& each) {
      if (each.get() == &its) return false;
      if (each->given_up || (each->formula && !each->formula->of_equal_variables(*its.formula))) return true;
      return std::ranges::any_of(each->samples, [&](const auto& sample) { return inside(its.formula->point(sample.first)); }) ||
             std::ranges::any_of(each->lows, inside) || std::ranges::any_of(each->highs, inside);
    });
  }
};

SizedPlans::SizedPlans() = default;
SizedPlans::~SizedPlans() = default;

SizedPlans::Family* SizedPlans::family_of(const std::string& structure) {
  const auto at = std::ranges::find_if(families_, [&](const auto& each) { return each->structure == structure; });
  if (at == families_.end()) return nullptr;
  std::rotate(at, at + 1, families_.end());
  return families_.back().get();
}

uint64_t SizedPlans::num_answers() const {
  const std::lock_guard lock(mutex_);
  return num_answers_;
}

std::optional<SizedPlans::Known> SizedPlans::at(std::span<const uint8_t> region, const std::string& asked) {
  const std::optional<Bytes> bytes = split(region);
  if (!bytes) return std::nullopt;
  const std::lock_guard lock(mutex_);
  Family* family = family_of(asked + bytes->structure);
  if (!family) return std::nullopt;
  Family::Structure* only = nullptr;
  Numbers numbers, found;
  for (const auto& each : family->plans) {
    if (!each->formula || !family->is_between(*each, bytes->numbers) || !each->formula->at(bytes->numbers, found)) continue;
    if (only) return std::nullopt;  // either may be: planning tells
    only = each.get();
    numbers = std::move(found);
  }
  if (!only) return std::nullopt;
  ++num_answers_;
  Known out{only->parts, is_doubted(++only->answers)};
  size_t at = 0;
  visit_numbers(out.parts, [&](auto& number) { set_bits(number, numbers[at++]); });
  return out;
}

void SizedPlans::made(std::span<const uint8_t> region, const std::string& asked, const PlanParts& parts) {
  const std::optional<Bytes> bytes = split(region);
  if (!bytes) return;
  PlanParts structure = without_numbers(parts);
  const Numbers numbers = numbers_of(parts);
  const std::lock_guard lock(mutex_);
  Family* family = family_of(asked + bytes->structure);
  if (!family) {
    if (families_.size() == kMostFamilies) families_.erase(families_.begin());
    families_.push_back(std::make_unique<Family>());
    family = families_.back().get();
    family->structure = asked + bytes->structure;
  }
  Family::Structure* its = nullptr;
  for (const auto& each : family->plans) {
    Numbers said;
    const bool is_its = each->parts == structure;
    if (is_its) its = each.get();
    const bool says = each->formula && family->is_between(*each, bytes->numbers) && each->formula->at(bytes->numbers, said);
    if (says && (!is_its || said != numbers)) each->give_up();
  }
  if (!its && family->plans.size() == kMostStructures) {
    for (const auto& each : family->plans) each->give_up();  // nobody knows any more what lies between
  } else if (!its) {
    family->plans.push_back(std::make_unique<Family::Structure>());
    its = family->plans.back().get();
    its->parts = std::move(structure);
  }
  if (its) its->take(bytes->numbers, numbers);
}

}  // namespace keirin::codegen
