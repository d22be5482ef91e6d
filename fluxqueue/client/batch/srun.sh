#!/bin/sh
# srun in the pod of a batch script: starts the tasks of a step, and waits for them. Its other names
# are "flux" (flux run) and "scontrol" (show hostnames). It needs a POSIX shell, and nothing of Slurm.
# batch_step.py puts it on the PATH. steps/ has the cpus of each step, tasks/ the pids of their tasks.
here=${FLUXQUEUE_RUN:-/run/fluxqueue}
as=${0##*/}
fail() { echo "$as: error: $*" >&2; exit 1; }

if [ "$as" = scontrol ]; then
    case "$1 $2" in
    "show hostname" | "show hostnames") ;;
    *) fail "only 'scontrol show hostnames' works in a pod" ;;
    esac
    list=${3:-${SLURM_JOB_NODELIST:?}}
    case $list in *'['*) fail "cannot expand $list" ;; esac
    IFS=,
    for one in $list; do echo "$one"; done
    exit 0
fi
if [ "$as" = flux ]; then
    case ${1:-} in
    run) shift ;;
    *) fail "only 'flux run' works in a pod: there is no Flux instance" ;;
    esac
fi

number() { case $2 in '' | *[!0-9]* | 0*) fail "$1 needs a number, not '$2'" ;; esac; }
tasks='' cpus='' gpus='' label='' out='' err='' folder='' shares='' kill_all=''
while [ $# -gt 0 ]; do
    word=$1 value=
    shift
    # A value stands behind =, behind the letter, or in the next word.
    case $word in
    --) break ;;
    --*=*) value=${word#*=} word=${word%%=*} ;;
    -[ncNJoeDmtpAwxGig]?*) value=${word#??} word=${word%"${word#??}"} ;;
    --label | --label-io | --exclusive | --exact | --overlap | --unbuffered | --kill-on-bad-exit) ;;
    --no-kill | --overcommit | --quiet | --verbose | --preserve-env | --pty | --contiguous) ;;
    --*) value=${1-} && [ $# -gt 0 ] && shift ;;
    -[ncNJoeDmtpAwxGig]) value=${1-} && [ $# -gt 0 ] && shift ;;
    -[luKkOQvEsX]) ;;
    -?*) fail "unknown option $word" ;;
    *) set -- "$word" "$@" && break ;;
    esac
    [ "$as" = flux ] && [ "$word" = -o ] && word=--setopt
    [ "$as" = flux ] && [ "$word" = -g ] && word=--gpus-per-task
    case $word in
    -n | --ntasks) number "$word" "$value" && tasks=$value ;;
    -c | --cpus-per-task | --cores-per-task) number "$word" "$value" && cpus=$value ;;
    --gpus-per-task) number "$word" "${value##*:}" && gpus=${value##*:} ;;
    --ntasks-per-node) number "$word" "$value" && tasks=${tasks:-$value} ;;
    -l | --label | --label-io) label=yes ;;
    -o | --output) out=$value ;;
    -e | --error) err=$value ;;
    -D | --chdir) folder=$value ;;
    -K | --kill-on-bad-exit) [ "${value:-1}" = 0 ] || kill_all=yes ;;
    -O | --overcommit | --overlap | -s) shares=yes ;;
    -N | --nodes)
        number "$word" "${value%%-*}"
        [ "${value%%-*}" -le "${SLURM_NNODES:-1}" ] || fail "$value nodes, and the script has ${SLURM_NNODES:-1}"
        ;;
    -i | --input | --multi-prog | --het-group | --bcast | --jobid | --attach)
        fail "$word does not work in a pod"
        ;;
    -u | -Q | -v | -k | -E | -X | -J | -m | -t | -p | -A | -w | -x | -G | -g | --*) ;;
    *) fail "unknown option $word" ;;
    esac
done
[ $# -gt 0 ] || fail "no command given"
[ -z "$folder" ] || cd "$folder" || exit 1

all=${FLUXQUEUE_TASKS:-1}
if [ "${FLUXQUEUE_EACH_POD:-}" ]; then
    # The script runs in each pod, and each pod is one task. A narrower step leaves out the last ones.
    [ "${SLURM_PROCID:-0}" -lt "${tasks:-$all}" ] || exit 0
    exec "$@"
fi
[ "$as" = flux ] && tasks=${tasks:-1}
tasks=${tasks:-$all}
cpus=${cpus:-${SRUN_CPUS_PER_TASK:-${SLURM_CPUS_PER_TASK:-}}}
most=${FLUXQUEUE_CPUS:-$all}
need=$((tasks * ${cpus:-1}))
[ "$shares" ] && need=0
[ "$need" -le "$most" ] || fail "$tasks tasks of ${cpus:-1} cpus are more than the $most of the script"

mkdir -p "$here/steps" "$here/tasks"
pause() { sleep 0.1 2>/dev/null || sleep 1; }
locked() {
    until mkdir "$here/lock" 2>/dev/null; do
        # The process that holds it may have been killed.
        read -r owner 2>/dev/null <"$here/lock/pid" && ! kill -0 "$owner" 2>/dev/null && rm -rf "$here/lock"
        pause
    done
    echo $$ >"$here/lock/pid"
}
unlocked() { rm -rf "$here/lock"; }
in_use() {
    used=0
    for step in "$here"/steps/*; do
        read -r owner taken 2>/dev/null <"$step" || continue
        if kill -0 "$owner" 2>/dev/null; then used=$((used + taken)); else rm -f "$step"; fi
    done
}
# A step waits until its cpus are free, as with --exact.
while :; do
    locked
    in_use
    [ $((used + need)) -le "$most" ] && break
    unlocked
    pause
done
id=0
read -r id 2>/dev/null <"$here/next"
echo $((id + 1)) >"$here/next"
echo "$$ $need" >"$here/steps/$id"
unlocked
scratch=$here/step.$id
mkdir -p "$scratch"

pids=
tree() { # signal, process: also what it started
    below=$(cat "/proc/$2/task/$2/children" 2>/dev/null)
    kill -s "$1" "$2" 2>/dev/null
    for one in $below; do tree "$1" "$one"; done
}
pass_on() { # signal: to all processes of the step, as Slurm does
    [ "$1" != TERM ] || : >"$scratch/ended" # for tasks that begin only now
    for task in "$here"/tasks/*; do
        read -r step 2>/dev/null <"$task" && [ "$step" = "$id" ] && tree "$1" "${task##*/}"
    done
}
for signal in HUP INT QUIT USR1 USR2 TERM CONT; do
    # shellcheck disable=SC2064  # the present value is meant
    trap "pass_on $signal" "$signal"
done
trap 'rm -rf "$here/steps/$id" "$scratch"' EXIT
name() { printf '%s' "$1" | sed "s/%t/$2/g; s/%[jJA]/${SLURM_JOB_ID:-}/g; s/%s/$id/g; s/%N/$(uname -n)/g"; }

SLURM_NTASKS=$tasks SLURM_NPROCS=$tasks SLURM_STEP_NUM_TASKS=$tasks SLURM_STEP_ID=$id SLURM_STEPID=$id
SLURM_TASKS_PER_NODE=$tasks SLURM_STEP_TASKS_PER_NODE=$tasks SLURM_NODEID=0 FLUX_JOB_SIZE=$tasks
export SLURM_NTASKS SLURM_NPROCS SLURM_STEP_NUM_TASKS SLURM_STEP_ID SLURM_STEPID
export SLURM_TASKS_PER_NODE SLURM_STEP_TASKS_PER_NODE SLURM_NODEID FLUX_JOB_SIZE
[ -z "$cpus" ] || export SLURM_CPUS_PER_TASK="$cpus"
prefixed() { while IFS= read -r line || [ "$line" ]; do printf '%s: %s\n' "$1" "$line"; done; }
task() { # rank, program
    rank=$1
    shift
    export SLURM_PROCID="$rank" SLURM_LOCALID="$rank" FLUX_TASK_RANK="$rank" FLUX_TASK_LOCAL_ID="$rank"
    if [ "$gpus" ]; then
        seen=$((rank * gpus)) list=
        while [ "$seen" -lt $(((rank + 1) * gpus)) ]; do list=${list:+$list,}$seen seen=$((seen + 1)); done
        export CUDA_VISIBLE_DEVICES="$list"
    fi
    # shellcheck disable=SC2016  # of the shell that becomes the task
    sh -c 'echo "$1" >"$2/tasks/$$"; [ ! -e "$2/step.$1/ended" ] || exit 143; shift 2; exec "$@"' \
        task "$id" "$here" "$@"
    code=$?
    [ "$code" -ne 0 ] && [ "$kill_all" ] && pass_on TERM
    echo "$code" >"$scratch/$rank"
    return "$code"
}
labelled() {
    { { task "$@" 2>&1 >&3 3>&- | prefixed "$1" >&2 3>&-; } 3>&1 | prefixed "$1"; }
}
one() {
    run=task
    [ "$label" ] && run=labelled
    if [ "$out" ]; then
        to=$(name "$out" "$1")
        errors=$(name "${err:-$out}" "$1")
        if [ "$to" = "$errors" ]; then $run "$@" >>"$to" 2>&1; else $run "$@" >>"$to" 2>>"$errors"; fi
    elif [ "$err" ]; then
        $run "$@" 2>>"$(name "$err" "$1")"
    else
        $run "$@"
    fi
}
rank=0
while [ "$rank" -lt "$tasks" ]; do
    for file in "$out" "$err"; do # the first task of a step empties the files
        [ "$file" ] && : >"$(name "$file" "$rank")"
    done
    rank=$((rank + 1))
done
exec 4<&0 # a shell would give /dev/null to what runs beside it
rank=0
while [ "$rank" -lt "$tasks" ]; do
    one "$rank" "$@" <&4 &
    pids="$pids $!"
    rank=$((rank + 1))
done
for pid in $pids; do
    while :; do
        wait "$pid"
        kill -0 "$pid" 2>/dev/null || break
    done
done
worst=0 rank=0
while [ "$rank" -lt "$tasks" ]; do
    code=137
    read -r code 2>/dev/null <"$scratch/$rank"
    [ "$code" -gt "$worst" ] && worst=$code
    rank=$((rank + 1))
done
for pid in "$here"/tasks/*; do kill -0 "${pid##*/}" 2>/dev/null || rm -f "$pid"; done
exit "$worst"
