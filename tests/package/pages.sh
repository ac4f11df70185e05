#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs pages of docs/ against the installed package: each `sh` block of a page in one shell after the other, each `text` block behind it as
# lines that its output has to hold, `...` for anything, a space for any number of them. Arguments: the build folder, or the prefix where
# it is installed already, then for each page PATH=N with the number of blocks that it has at least, so that a page which lost its blocks is
# noticed.
set -euo pipefail
build=$1
shift
work=$(mktemp -d)
done=no
leave() {
  [ $done = yes ] || { echo "The page's commands did not do what it says. The last ones said:"; cat "$work/said"; }
  rm -rf "$work"
}
trap leave EXIT
export PREFIX=$build KEIRIN_CACHE=$work/cache
if [ -e "$build/CMakeCache.txt" ]; then
  export PREFIX=$work/usr
  cmake --install "$build" --prefix "$PREFIX" > "$work/install.log"
fi
export PATH=$PREFIX/bin:$PATH
said=$work/said

run_page() {  # page, blocks
  local blocks=0 lines=0 kind text pattern
  # Lines of the page as "kind<TAB>text"; a block ends with the kind alone.
  while IFS=$'\t' read -r kind text; do
    case $kind in
      sh) printf '%s\n' "$text" >> "$work/block" ;;
      end-sh)
        blocks=$((blocks + 1))
        sed 's/^/$ /' "$work/block"
        # shellcheck disable=SC1091
        . "$work/block" > "$said" 2>&1 < /dev/null
        rm "$work/block"
        ;;
      text)
        lines=$((lines + 1))
        pattern=$(sed 's/[][\.*^$+?(){}|/]/\\&/g; s/\\\.\\\.\\\./.*/g' <<< "$text" | tr -s ' ')
        tr -s ' ' < "$said" | grep -E -- "^$pattern$" > /dev/null || { echo "not found: $text"; exit 1; }
        ;;
    esac
  done < <(awk '/^```sh$/ {kind = "sh"; next} /^```text$/ {kind = "text"; next} /^```$/ {if (kind == "sh") print "end-sh"; kind = ""; next}
                kind != "" {print kind "\t" $0}' "$1")
  [ "$blocks" -ge "$2" ] && [ "$lines" -ge 1 ] || { echo "$1 has $blocks blocks and $lines lines to look for"; exit 1; }
  echo "$(basename "$1"): $blocks blocks run, $lines lines found"
}

for page in "$@"; do
  mkdir -p "$work/home/$(basename "${page%=*}")"
  cd "$work/home/$(basename "${page%=*}")"
  run_page "${page%=*}" "${page#*=}"
done
done=yes
