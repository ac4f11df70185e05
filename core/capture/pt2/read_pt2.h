// SPDX-License-Identifier: Apache-2.0
//
// The front of the reader: a whole `.pt2` file, or the same bytes in memory, becomes programs, weights and extra
// records. It opens no pickle, runs no code and includes no torch. It either returns everything or a Status; nothing is
// half loaded.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/capture/pt2/limits.h"
#include "core/capture/pt2/payload.h"
#include "core/capture/pt2/schema.h"

namespace keirin::pt2 {

struct Model {
  Program program;
  Payload payload;
};

struct Pt2File {
  std::string path;          // as given, or "memory"
  Named<Model> models;       // by name; usually the one called "model"; never empty
  Named<std::string> extra;  // the records extra/<name>, as text
  // Tells what the file holds from what others do: of all records' names, sizes and checksums but those in extra/, and of the rules for
  // weights there. Not proof against who means to deceive. Empty: it was read from no file.
  std::string digest;

  // The model called `name`; with an empty name the only one. `invalid_input`, listing the names, if that is not one.
  Result<const Model*> model(const std::string& name = {}) const;
};

Result<Pt2File> read_pt2(const std::string& path, const Limits& limits = {});

// The same without weights: each payload is empty. For who asks what a file is; it costs no more than its text.
Result<Pt2File> read_programs(const std::string& path, const Limits& limits = {});

// `bytes` is only borrowed for the call. `name` stands for the file in messages.
Result<Pt2File> read_pt2(std::span<const std::byte> bytes, const std::string& name = "memory",
                         const Limits& limits = {});

// Of an open file: core/capture/pt2/bytes.h says which descriptors will do.
Result<Pt2File> read_pt2(int descriptor, const std::string& name, const Limits& limits = {});

}  // namespace keirin::pt2
