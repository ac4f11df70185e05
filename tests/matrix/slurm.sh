#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ci/recipes/slurm.sh on a Slurm of its own: munge, slurmctld and two slurmd on loopback, which run as whoever runs the test. Four shards,
# of which one is killed half-way; the job after them merges what there is; the killed one is measured again, and then nothing tells the
# merged store from one sitting of the whole set. 77 where Slurm is not installed or cannot run.
. "$(dirname "$0")/begin.sh"
export PATH=$PATH:/usr/sbin SLURM_CONF=$work/slurm.conf
for program in munged slurmctld slurmd sbatch scontrol scancel squeue; do
  command -v $program > /dev/null || { echo "skipped: no $program here (Debian's munge, slurmctld, slurmd, slurm-client)"; exit 77; }
done
leave() {  # jobs first: they outlive their daemons
  [ ! -e slurmctld.pid ] || scancel --user="$user" 2> /dev/null
  for _ in $(seq 100); do [ -n "$(squeue -h 2> /dev/null)" ] || break; sleep 0.1; done
  for pid in slurmd-n1 slurmd-n2 slurmctld munged; do kill "$(cat $pid.pid 2> /dev/null)" 2> /dev/null; done
  for _ in $(seq 50); do rm -rf "$work" 2> /dev/null && break; sleep 0.1; done
}
user=$(id -un)
trap leave EXIT
await() {  # seconds, what for, command...
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" > /dev/null 2>&1; do
    ((SECONDS < end)) || { fail "waited in vain: $what"; tail -n 8 ./*.log stores/*.txt; exit 1; }
    sleep 0.1
  done
}

chmod 755 "$work"
mkdir -m 700 munge state spool-n1 spool-n2
dd if=/dev/urandom of=munge/key bs=1024 count=1 status=none
chmod 400 munge/key
read -r control first second < <(python3 -c '
import socket
ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*[port.getsockname()[1] for port in ports])')
host=$(hostname -s)
cat > slurm.conf << CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$control
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
MailProg=/bin/true
KillWait=1
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$first
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$second
PartitionName=all Nodes=n1,n2 Default=YES State=UP
CONF
munged --force --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munged.pid" --log-file="$work/munged.log" \
  --seed-file="$work/munge/seed" > started.log 2>&1 || { fail "munged did not start"; cat started.log; exit 1; }
slurmctld -f slurm.conf >> started.log 2>&1
for node in n1 n2; do slurmd -f slurm.conf -N $node >> started.log 2>&1; done
if grep -q 'Unable to initialize cgroup plugin' slurmd-n?.log 2> /dev/null; then
  echo "skipped: slurmd needs /sys/fs/cgroup, which is not here or may not be written"
  exit 77
fi
nodes_are_idle() { [[ $(sinfo -h -N -t idle -o %N | wc -l) == 2 ]]; }
await 30 "two nodes" nodes_are_idle

# Two installed sides: the command is the real one, its workers are stand-ins. Each node has a cache, as machines have.
cases_of alpha beta gamma delta epsilon zeta eta theta iota kappa > set
side() {  # folder, words of the stand-in
  mkdir -p "$1/bin"
  stand_in "$1/worker" --build "$1" "$2" '$(cat '"$work"'/stuck)'
  printf '#!/bin/sh\nexport KEIRIN_CACHE=%s/cache-$SLURMD_NODENAME\n[ "$1" = matrix ] || exec %s/worker "$@"\nexec %s "$@"\n' \
    "$work" "$work/$1" "$keirin" > "$1/bin/keirin"
  chmod +x "$1/bin/keirin"
}
side base ''
side head '--slow gamma=1.1 --slow theta=0.8'
touch stuck
words='--variants auto --gate 2'
# shellcheck disable=SC2086
exits 1 head/bin/keirin matrix compare --base base --head head --set ./set $words --store whole --quiet

# The shard that hangs at its last case, and has others before it.
for shard in 1 2 3 4; do
  "$keirin" matrix run --set ./set --variants auto --shard $shard/4 --list > listed
  (($(wc -l < listed) < 2)) || break
done
echo "--hang $(tail -n 1 listed | cut -d/ -f1)" > stuck
mkdir stores
export BASE=$work/base HEAD=$work/head STORES=$work/stores SHARDS=4 SET=$work/set WORDS="$words --quiet"
exits 0 "$here/../../ci/recipes/slurm.sh"
report=$(cat out)
array=$(squeue -h -n keirin-matrix -o %F | head -n 1)
done_before_it() { [[ $(grep -hc '"side":"head"' stores/shard-$((shard - 1))/log/*) -ge $(($(wc -l < listed) - 1)) ]]; }
await 20 "the cases before the one that hangs" done_before_it
others_are_done() { [[ $(squeue -h -r -j "$array" -o %K) == $((shard - 1)) ]]; }
await 90 "the other shards" others_are_done
scancel "${array}_$((shard - 1))"
is_over() { scontrol show job "$report" | grep 'JobState=\(COMPLETED\|FAILED\)'; }
await 60 "the job after them" is_over
scontrol -o show job "$array" > out
holds out 'JobState=CANCELLED'
holds stores/report.txt '^  1 regressed, 1 improved, 7 unchanged, 1 not_run$'
scontrol -o show job "$report" > out
holds out 'ExitCode=1:0'  # the verdict
[[ -s stores/report.md && -s stores/report.html ]] || fail "no report was written"

# The killed one again, and nothing tells the merged store from one sitting.
: > stuck
# shellcheck disable=SC2086
"$keirin" matrix compare --base base --head head --set ./set $words --shard $shard/4 --store again --quiet > out 2> err
exits 0 "$keirin" matrix merge --into stores/all again
for store in whole stores/all; do "$keirin" matrix report --store $store --text '' --json "$(basename $store).json"; done
python3 - << 'PYTHON' || fail "the merged store is not what one sitting is"
import json
inputs = ["case", "variant", "label", "candidate", "gate", "shifts", "base_slots_ns", "head_slots_ns", "ratio", "ratio_ci", "p"]
whole, merged = ([[cell[name] for name in inputs] for cell in json.load(open(f"{store}.json"))["cells"]] for store in ("whole", "all"))
assert len(whole) == 10 and whole == merged, (whole, merged)
PYTHON
((failed)) || echo "SLURM nodes=2 shards=4 cells=10 killed=1 not_run=$(grep -c '^  \. ' stores/report.txt) equal_at_last=10"
exit $failed
