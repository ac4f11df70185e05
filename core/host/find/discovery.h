// SPDX-License-Identifier: Apache-2.0
//
// Where plugins are looked for: paths given by the caller, KEIRIN_PLUGIN_PATH, the folder that came with this build. Only
// manifests are found here; no code runs, and nothing relative is ever looked at.
#pragma once

#include <string>
#include <vector>

namespace keirin {

struct FoundManifest {
  std::string path;
  bool exact = false;  // the caller named this very plugin
};

struct Discovery {
  std::vector<FoundManifest> manifests;  // each once, in order of precedence
  std::vector<std::pair<std::string, std::string>> empty_paths;  // named by the caller, and why nothing was found there
};

// `search`: also the environment and the build's own folder.
Discovery find_manifests(const std::vector<std::string>& paths, bool search);

// The program of the probe child beside this library or program; empty if there is none.
std::string find_worker();

}  // namespace keirin
