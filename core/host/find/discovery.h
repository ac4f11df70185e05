// SPDX-License-Identifier: Apache-2.0
//
// Where plugins are looked for: paths given by the caller, KEIRIN_PLUGIN_PATH, the folder that came with this build, the user's folder
// (keirin/plugins in XDG_DATA_HOME, else in ~/.local/share) and the system's (/usr/local/lib/keirin/plugins, /usr/lib/keirin/plugins). Only
// manifests are found here; no code runs, and nothing relative is ever looked at.
//
// The first three are trusted: whoever names a path means it, and whoever can write the folder of this build can write this library. What
// lies in the last two only lies there; allowed.h says whether it may run.
#pragma once

#include <string>
#include <vector>

namespace keirin {

struct FoundManifest {
  std::string path;
  bool exact = false;    // the caller named this very plugin
  bool trusted = false;  // named, or part of this build
};

struct Discovery {
  std::vector<FoundManifest> manifests;  // each once, in order of precedence
  std::vector<std::pair<std::string, std::string>> empty_paths;  // named by the caller, and why nothing was found there
};

// `search`: also all but the caller's paths.
Discovery find_manifests(const std::vector<std::string>& paths, bool search);

// The program of the probe child beside this library or program; empty if there is none.
std::string find_worker();

}  // namespace keirin
