# SPDX-License-Identifier: Apache-2.0
# What `keirin matrix bisect` runs (bisect.h). Arguments: the keirin command, the repository, a good and a bad commit, how a checkout is
# built, where that leaves the command, the store, then words for `keirin matrix compare`. The repository itself is not touched: both
# checkouts are worktrees of its own, gone at the end.

set -u
keirin=$1 repository=$2 good=$3 bad=$4 build=$5 built=$6 store=$7
shift 7
say() { echo "keirin: $*" >&2; }
commit() {
  git -C "$repository" rev-parse --verify --quiet "$1^{commit}" || {
    say "\"$1\" is not a commit of $repository: nothing was built"; exit 2; }
}
command -v git > /dev/null || { say "git is not installed: nothing was built"; exit 3; }
repository=$(git -C "$repository" rev-parse --show-toplevel) || exit 2
good=$(commit "$good") && bad=$(commit "$bad") || exit 2
git -C "$repository" merge-base --is-ancestor "$good" "$bad" ||
  { say "the good commit does not come before the bad one: nothing was built. Give --good and --bad the other way round?"; exit 2; }
mkdir -p "$store" && store=$(cd "$store" && pwd) && work=$(mktemp -d) || exit 3
leave() {
  for each in good tried; do git -C "$repository" worktree remove --force "$work/$each" 2> /dev/null; done
  rm -rf "$work"
}
trap leave EXIT
trap 'exit 130' INT TERM
for each in good tried; do
  git -C "$repository" worktree add --quiet --detach "$work/$each" "$good" || exit 3
done
(cd "$work/good" && sh -c "$build") > "$work/build.log" 2>&1 ||
  { tail -n 20 "$work/build.log" >&2; say "the good commit could not be built"; exit 3; }

# One commit, in the folder that it is checked out in: 0 as fast as the good one, 1 slower or wrong, 125 cannot be said, else it ends.
cat > "$work/step" << 'STEP'
#!/bin/sh
work=$1 keirin=$2 build=$3 built=$4 store=$5
shift 5
echo "-- $(git log -1 --format='%h %s')" >&2
sh -c "$build" > "$work/build.log" 2>&1 || { tail -n 5 "$work/build.log" >&2; echo "-- not built: skipped" >&2; exit 125; }
rm -f "$work/report.json"
"$keirin" matrix compare --base "$work/good/$built" --head "./$built" --store "$store" --json "$work/report.json" "$@" >&2
code=$?
[ -e "$work/report.json" ] || { [ $code -eq 1 ] && exit 125; exit 255; }
case $code in 0 | 1) exit $code ;; 4) exit 125 ;; *) exit 255 ;; esac
STEP
chmod +x "$work/step"
cd "$work/tried" || exit 3
git checkout --quiet --detach "$bad" || exit 3
"$work/step" "$work" "$keirin" "$build" "$built" "$store" "$@"
case $? in
  1) ;;
  0) say "the bad commit is as fast as the good one: nothing to look for"; exit 4 ;;
  125) say "whether the bad commit is slower could not be decided: nothing to look for yet"; exit 4 ;;
  *) exit 3 ;;
esac
git bisect start "$bad" "$good" > "$work/git.log" || exit 3
git bisect run "$work/step" "$work" "$keirin" "$build" "$built" "$store" "$@" > "$work/git.log"
code=$?
if found=$(git log -1 --format='%h %s' refs/bisect/bad 2> /dev/null) && [ $code -eq 0 ]; then
  echo "the first that is slower: $found"
  exit 0
fi
tail -n 20 "$work/git.log" >&2
say "which commit it is could not be decided"
exit 4
