#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# keirin matrix bisect over a made-up repository of nine commits: the fourth makes beta slower, the one after it does not build, the
# second cannot be measured. A checkout is "built" by writing down a stand-in with the times that its file says.
. "$(dirname "$0")/begin.sh"
cases_of alpha beta > set
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_CONFIG_GLOBAL=/dev/null
git init --quiet repository
commit() { (cd repository && printf '%s\n' "$2" > words && printf '%s\n' "$1" > name && git add . && git commit --quiet -m "$1"); }
commit first '--factor 1.000'
commit second 'no words of a stand-in'
commit third '--factor 1.001'
commit slower '--slow beta=1.1'
commit unbuilt unbuilt
for i in sixth seventh eighth ninth; do commit $i "--slow beta=1.1 --factor 1.00${#i}"; done
git -C repository tag good HEAD~8
git -C repository status --porcelain=v1 > before
cat > build.sh << BUILD
grep -q unbuilt words && { echo no compiler likes it; exit 1; }
mkdir -p out
printf '#!/bin/sh\nexec $python -S -E $here/stand_in.py --build %s %s "\$@"\n' "\$(cat name)" "\$(cat words)" > out/keirin
chmod +x out/keirin
BUILD
bisect() {
  "$keirin" matrix bisect --repository repository --build "sh $work/build.sh" --built out --store store "$@" -- \
    --set "$work/set" --variants auto --gate 2 --quiet
}

exits 0 bisect --good good
holds out '^the first that is slower: [0-9a-f]* slower$'
holds err "v $(case_of beta) .* regressed, large, measured twice"
[[ $(grep -c '^-- .* ninth$' err) == 1 ]] || fail "the bad commit was not tried first, once"
[[ $(ls store/log | wc -l) -le 6 ]] || fail "nine commits took $(ls store/log | wc -l) sittings"
# The repository is as it was, and holds no worktree.
git -C repository status --porcelain=v1 | cmp -s before || fail "the repository was changed"
[[ $(git -C repository worktree list | wc -l) == 1 ]] || fail "a worktree was left"
git -C repository for-each-ref refs/bisect | grep -q . && fail "git still bisects"

# Nothing to look for, nothing that could decide, and words that cannot be meant.
exits 4 bisect --good HEAD~3 --bad HEAD
holds err 'as fast as the good one'
exits 4 bisect --good good --bad HEAD~4
holds err 'could not be decided'
exits 3 bisect --good HEAD~4
holds err 'no compiler likes it'
exits 2 bisect --good HEAD --bad good
exits 2 bisect --good nowhere
# Where all between are skipped, which one it is stays open.
(cd repository && git checkout --quiet good) && commit 'skipped' unbuilt && commit 'last' '--slow beta=1.1'
exits 4 bisect --good good
holds err 'which commit it is could not be decided'
exit $failed
