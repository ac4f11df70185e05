#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs docs/write-a-plugin.md: each `sh` block in one shell after the other, each `text` block behind it as lines that its output has to
# hold, `...` for anything, a space for any number of them. Arguments: the build folder, the page.
set -euo pipefail
build=$1 page=$2
work=$(mktemp -d)
done=no
leave() {
  [ $done = yes ] || { echo "The page's commands did not do what it says. The last ones said:"; cat "$work/said"; }
  rm -rf "$work"
}
trap leave EXIT
cmake --install "$build" --prefix "$work/usr" > "$work/install.log"
mkdir "$work/home"
cd "$work/home"
export PREFIX=$work/usr PATH=$work/usr/bin:$PATH KEIRIN_CACHE=$work/cache

blocks=0 lines=0 said=$work/said
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
              kind != "" {print kind "\t" $0}' "$page")
[ "$blocks" -ge 8 ] && [ "$lines" -ge 8 ] || { echo "the page has $blocks blocks and $lines lines to look for"; exit 1; }
done=yes
echo "$blocks blocks run, $lines lines found"
