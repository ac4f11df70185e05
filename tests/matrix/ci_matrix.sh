#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ci/matrix over a made-up repository whose commits are "built" by writing down a stand-in: which commit is the base, what is measured,
# how it ends, what it leaves.
. "$(dirname "$0")/begin.sh"
script=$here/../../ci/matrix
cases_of alpha beta > set
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_CONFIG_GLOBAL=/dev/null
git init --quiet repository
echo '/build*/' > repository/.gitignore
commit() { (cd repository && printf '%s\n' "$2" > words && printf '%s\n' "$1" > name && git add . && git commit --quiet -m "$1"); }
cat > build.sh << BUILD
grep -q unbuilt words && { echo no compiler likes it; exit 1; }
mkdir -p build
printf '#!/bin/sh\n[ "\$1" != matrix ] || exec %s "\$@"\nexec $python -S -E $here/stand_in.py --build %s %s "\$@"\n' \
  "$keirin" "\$(cat name)" "\$(cat words)" > build/keirin
chmod +x build/keirin
BUILD
matrix() { "$script" --checkout repository --build "sh $work/build.sh" --store store --set ./set --quiet "$@"; }

commit old ''
exits 2 matrix
holds err 'no release tag'
git -C repository tag v0.1.0
commit between '--slow alpha=1.1'
git -C repository tag not-a-release
commit head ''
# The release is the base, its noise is measured once, and head is as fast as it.
exits 0 matrix
holds out '^base: [0-9a-f]* old$'
holds out '^head: [0-9a-f]* head$'
holds out '  2 unchanged$'
holds out '^ci/matrix: not slower than v0.1.0 (built in [0-9]* s, all in [0-9]* s)$'
checks=$(grep -l '"purpose":"selfcheck"' store/log/* | wc -l)
(( checks >= 2 && checks <= 4 )) || fail "$checks selfchecks"
grep -q ' 1.0 % ' out || fail "the gate is not that of the selfchecks"
# A commit that is named; changes that are not committed are measured.
echo '--slow beta=1.2' > repository/words
exits 1 matrix --base HEAD
holds out 'and changes that are not committed'
holds out "^  v $(case_of beta) .* regressed, large"
holds out '^ci/matrix: SLOWER THAN HEAD, OR WRONG'
git -C repository checkout --quiet words
exits 0 matrix --base not-a-release
holds out "^  ^ $(case_of alpha) .* improved"
[[ $(grep -l '"purpose":"selfcheck"' store/log/* | wc -l) == "$checks" ]] || fail "noise was measured again"
# Starts of new processes, with the noise of starts measured first.
exits '0 4' matrix --base not-a-release --cold
holds out "  [=?!] alpha/small/f32/infer/cold-compile/default .* 10.0 %"
grep -q 'no gate' out && fail "the noise of starts was not measured"
# What cannot be meant, be built, or be finished.
exits 2 matrix --base nowhere
exits 2 matrix --minutes soon
exits 4 matrix --minutes 0
holds err 'no time is left'
echo unbuilt > repository/words
exits 3 matrix
holds err 'no compiler likes it'
# The checkout's own worktree is kept for the next time, so that it is built up and not anew.
[[ $(git -C repository worktree list | wc -l) == 2 ]] || fail "the base's worktree is not there once"
exit $failed
