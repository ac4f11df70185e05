// SPDX-License-Identifier: Apache-2.0
//
// The inside of the C printer. Every node of the DAG lives on a level: fixed for a row, fixed for one piece of a row (`vec`
// neighbours of inner at one serial point), or varying along the piece. Nodes of a level are printed at the head of its scope.
//
// The invariant: a name in `names_` is visible where it is used; leaving a scope forgets the names of its level.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plugins/codegen/kernel/registers.h"
#include "plugins/codegen/text/c_printer.h"

namespace keirin::codegen::text {

enum Level : uint8_t { kRowLevel, kPieceLevel, kElementLevel };
enum class Fetch : uint8_t { kNow, kAhead, kDone };          // contiguous loads: here, for a strip of pieces, by such a strip
enum class Part : uint8_t { kWhole, kPartial, kFinish };  // of a split kernel

inline std::string number(int64_t v) { return std::to_string(v); }

class Printer {
 public:
  Printer(const Kernel& kernel, const Schedule& schedule, const Dialect& dialect, const std::string& symbol);
  std::string print();

 private:
  // Lines.
  void line(const std::string& text);
  void open(const std::string& text);
  void close(const std::string& tail = "");

  // The frame of a kernel (print_shapes.cc).
  void head(const std::string& symbol);
  void print_flat();
  void print_tile();
  void print_narrow_tile();
  std::vector<size_t> declare_tiles(int lines, int pad);  // shared memory for the loads that are turned; which these are
  std::string tile_source(size_t access);
  void print_row(Part part);
  void print_column(Part part);
  void decode_outer(const std::string& row, int except = -1);
  void decode_serial();
  void decode_serial_but(size_t except, std::string rest);
  void map_piece(size_t first, size_t count);
  void map_body(const std::vector<bool>& in, size_t first, size_t count);
  // Calls `body` inside a loop over what a thread takes of its row, or of its columns' serial points; contiguous loads of
  // several pieces are under way before the first is used.
  void over_pieces(const std::vector<bool>& in, size_t first, bool split, const std::function<void()>& body);
  void over_points(const std::vector<bool>& in, const std::function<void()>& body);
  void over_lines(const std::vector<bool>& in, const std::function<void()>& body);
  void fetch_line(uint32_t access, int along);
  void bring_rows();
  void find_row(const std::string& first);
  void bring_ahead(const std::string& first);
  void strip(const std::vector<bool>& in, size_t first, int pieces, const std::function<void()>& head, const std::function<void()>& body);
  int strip_length(const std::vector<bool>& in) const;
  void piece_head(const std::string& end);
  void point_head();
  void open_elements();
  void row_pass(size_t first, size_t count, Part part);
  void column_pass(size_t first, size_t count, Part part);
  void finish_column();  // of a split one: its second kernel
  void column_map(size_t first, size_t count);
  // Where the partial result of reduce stage k lies for a cell and a split.
  void partial_slot(size_t k, const std::string& cells, const std::string& cell, const std::string& split, std::string& out) const;
  void take_kept(size_t stage);
  void put_kept(const std::vector<bool>& in, size_t stage);

  // Values (c_printer.cc).
  void find_levels();
  Level access_level(const Access& access, bool with_inner) const;
  std::vector<bool> needed(size_t first, size_t count) const;  // nodes of the pass, not below kept ones
  void needed_below(int32_t node, size_t stage, std::vector<bool>& in) const;
  void print_level(const std::vector<bool>& in, Level level);
  void print_node(int32_t node);
  void forget(Level level);
  void prepare_element_loads(const std::vector<bool>& in, Fetch fetch);
  bool fetched_load(const std::vector<bool>& in, size_t id) const;  // a contiguous load that the pass makes itself
  std::string place_ahead(uint32_t access) const;
  void prepare_store(uint32_t access);
  void print_stage_stores(const Stage& stage);
  void flush_stores(const Stage& stage);
  bool vector_access(const Access& access) const;  // contiguous along the piece, nothing else varies
  std::string access_base(uint32_t access);        // offset without what varies along the piece
  std::string access_guard(uint32_t access, bool inner);  // "" if always inside
  std::string linear(const Linear& form, int first_argument, bool with_inner) const;
  std::string inside(const Access::Indirect& indirect, int stride_argument);
  std::string rows_inside(uint32_t access, bool of_elements);  // whether indices of elements, or the others, lead there; ""
  void check_rows(uint32_t access);
  std::string clamped(const Access::Indirect& indirect, int stride_argument);
  std::string expression(const Node& node) const;
  std::string value_as(int32_t node, const std::string& type) const;
  std::string fill(const Access& access, Kind kind) const;
  std::string start(const Stage& stage) const;         // of its accumulator: a literal, or a braced list
  std::string start_braced(const Stage& stage) const;
  std::string accumulator_type(const Stage& stage) const;
  std::string result_type(const Stage& stage) const;
  std::string monoid(const Stage& stage) const;
  // Folds one more value in; `share` is in scope for kDeviations.
  std::string step(const Stage& stage, const std::string& acc, const std::string& value, const std::string& place) const;
  std::string result_of(const Stage& stage) const;     // the part of its accumulator that is the result, and that one's type
  std::string reduced_type(const Stage& stage) const;
  std::string a(int number) const { return (s_.many > 1 ? "a.v[own + " : "a.v[") + std::to_string(number) + "]"; }
  std::string block() const { return s_.many > 1 ? "block" : "KRN_BLOCK"; }
  std::string blocks() const { return s_.many > 1 ? "blocks" : "KRN_BLOCKS"; }
  std::string live() const;  // whether element j exists; "" if it always does
  std::string if_live() const;
  // `otherwise` where a piece may have a tail, else its whole length.
  std::string whole_or(const std::string& otherwise) const { return s_.whole ? std::to_string(s_.vec) : otherwise; }
  void find_divisors();
  bool only_added_to_one(int32_t id) const;
  std::string divided_by_row(int32_t node) const;
  bool is_inner(size_t axis) const { return axis + 1 == k_.axes.size(); }
  bool in_strips() const { return s_.shape == GpuShape::kFlat && s_.chunks > 1; }  // then outer axes vary from piece to piece
  bool tiled(const Access& access) const;
  bool staged(const Access& access) const;
  int reach() const { return s_.group * s_.cluster; }  // threads that share a row

  struct AccessArguments {
    int offset, coeff;
    std::vector<int> indirects;  // stride; limit is the next
    std::vector<int> guards;     // offset; coefficients and limit follow
  };

  const Kernel& k_;
  const Schedule& s_;
  const Dialect& d_;
  std::string symbol_;
  std::string out_;
  int indent_ = 0;
  const std::vector<bool> moves_;  // by node: along the elements of a piece
  std::vector<Level> level_;
  std::vector<bool> divides_;  // by node: of a row, and elements are divided by it
  std::vector<std::string> names_;
  std::vector<AccessArguments> arguments_;
  int partial_vec_ = s_.vec;  // of a split column: elements that a thread of its first kernel takes at once
  std::vector<int> literals_;  // by node: the argument that holds it, or -1
  int num_arguments_ = 0;
  Kept kept_;               // row shape with pieces in registers; else nothing
  std::vector<int> ahead_;  // by access: where its part of the shared memory of rows to come starts; -1: none
  std::vector<std::string> axis_;  // names of the axes' indices
};

std::string kind_name(Kind kind);
std::string storage_name(uint8_t dtype);
Kind storage_kind(uint8_t dtype);

}  // namespace keirin::codegen::text
