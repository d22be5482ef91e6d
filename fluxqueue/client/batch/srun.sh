#!/bin/sh
# srun in the pod of a batch script: starts the tasks of a step, and waits for them. Its other names
# are "flux" (flux run), "scontrol" (show hostnames) and "rsh" (for mpirun). It needs a POSIX shell,
# and nothing of Slurm. batch_step.py puts it on the PATH. steps/ has the cpus of each step, tasks/
# the pids of their tasks. In the other pods of a script, agent.sh calls it as "part" and "signal".
here=${FLUXQUEUE_RUN:-/run/fluxqueue}
box=$here/busybox
as=${0##*/}
fail() { echo "$as: error: $*" >&2; exit 1; }
pause() { sleep 0.1 2>/dev/null || sleep 1; }
hosts=${FLUXQUEUE_HOSTS:-$(uname -n)} count=${FLUXQUEUE_NODES:-1}

# --- the tasks in this pod ----------------------------------------------------------------------
id='' scratch='' label='' gpus='' out='' err='' kill_all='' others='' is_part='' pids=''
tree() { # signal, process: also what it started
    below=$(cat "/proc/$2/task/$2/children" 2>/dev/null)
    kill -s "$1" "$2" 2>/dev/null
    for one in $below; do tree "$1" "$one"; done
}
order() { [ -p "$here/agents/$1.in" ] && echo "$2" 1<>"$here/agents/$1.in"; } # node, a line for its agent
pass_on() { # signal: to all processes of the step, as Slurm does
    case $1 in TERM | PIPE) : >"$scratch/ended" ;; esac # for tasks that begin only now
    for task in "$here"/tasks/*; do
        read -r step 2>/dev/null <"$task" && [ "$step" = "$id" ] && tree "$1" "${task##*/}"
    done
    for node in $others; do order "$node" "signal $id $1"; done
}
prefixed() { while IFS= read -r line || [ "$line" ]; do printf '%s: %s\n' "$1" "$line"; done; }
task() { # rank, its number in this pod, program
    rank=$1 place=$2
    shift 2
    export SLURM_PROCID="$rank" SLURM_LOCALID="$place" FLUX_TASK_RANK="$rank" FLUX_TASK_LOCAL_ID="$place"
    if [ "$gpus" ]; then
        seen=$((place * gpus)) list=
        while [ "$seen" -lt $(((place + 1) * gpus)) ]; do list=${list:+$list,}$seen seen=$((seen + 1)); done
        export CUDA_VISIBLE_DEVICES="$list"
    fi
    # shellcheck disable=SC2016  # of the shell that becomes the task
    sh -c 'echo "$1" >"$2/tasks/$$"; [ ! -e "$2/step.$1/ended" ] || exit 143; shift 2; exec "$@"' \
        task "$id" "$here" "$@" 6>&- 7>&- 8>&- 9>&-
    code=$?
    [ "$code" -ne 0 ] && [ "$kill_all" ] && pass_on TERM
    if [ "$is_part" ]; then echo "code $id $rank $code" >&6; else echo "$code" >"$scratch/$rank"; fi
    return "$code"
}
labelled() {
    { { task "$@" 2>&1 >&3 3>&- | prefixed "$1" >&2 3>&-; } 3>&1 | prefixed "$1"; }
}
name() { # a file, rank, number of the node, node
    printf '%s' "$1" | sed "s/%t/$2/g; s/%n/$3/g; s/%N/${4%%.*}/g; s/%[jJA]/${SLURM_JOB_ID:-}/g; s/%s/$id/g"
}
one() {
    run=task
    [ "$label" ] && run=labelled
    if [ "$out" ]; then
        to=$(name "$out" "$1" 0 "$host")
        errors=$(name "${err:-$out}" "$1" 0 "$host")
        if [ "$to" = "$errors" ]; then $run "$@" >>"$to" 2>&1; else $run "$@" >>"$to" 2>>"$errors"; fi
    elif [ "$err" ]; then
        $run "$@" 2>>"$(name "$err" "$1" 0 "$host")"
    else
        $run "$@"
    fi
}
start() { # ranks, program
    ranks=$1 place=0
    shift
    mkdir -p "$here/tasks" "$scratch"
    exec 4<&0 # a shell would give /dev/null to what runs beside it
    for rank in $ranks; do
        one "$rank" "$place" "$@" <&4 &
        pids="$pids $!"
        place=$((place + 1))
    done
}
finish() {
    for pid in $pids; do
        while :; do
            wait "$pid"
            kill -0 "$pid" 2>/dev/null || break
        done
    done
    for pid in "$here"/tasks/*; do kill -0 "${pid##*/}" 2>/dev/null || rm -f "$pid"; done
}

case $as in
scontrol)
    case "$1 $2" in
    "show hostname" | "show hostnames") ;;
    *) fail "only 'scontrol show hostnames' works in a pod" ;;
    esac
    list=${3:-${SLURM_JOB_NODELIST:?}}
    case $list in *'['*) fail "cannot expand $list" ;; esac
    IFS=,
    for one in $list; do echo "$one"; done
    exit 0
    ;;
flux)
    case ${1:-} in
    run) shift ;;
    *) fail "only 'flux run' works in a pod: there is no Flux instance" ;;
    esac
    ;;
rsh) # [options] host, a line of shell
    while [ "${1#-}" != "$1" ]; do shift; done
    host=$1
    shift
    exec "$here/srun" --overlap -N 1 -n 1 -w "$host" sh -c "$*"
    ;;
signal)
    id=$1 scratch=$here/step.$1
    mkdir -p "$scratch"
    pass_on "$2"
    exit 0
    ;;
part)
    id=$FLUXQUEUE_STEP scratch=$here/step.$id is_part=yes
    label=$FLUXQUEUE_LABEL gpus=$FLUXQUEUE_GPUS ranks=$FLUXQUEUE_RANKS
    if ! cd "$FLUXQUEUE_FOLDER"; then
        for rank in $ranks; do echo "code $id $rank 1" >&6; done
        fail "the folder is not on $SLURMD_NODENAME: use a volume, or srun -D /"
    fi
    unset FLUXQUEUE_STEP FLUXQUEUE_LABEL FLUXQUEUE_GPUS FLUXQUEUE_RANKS FLUXQUEUE_FOLDER
    start "$ranks" "$@"
    finish
    rm -rf "$scratch"
    exit 0
    ;;
esac

# --- the options --------------------------------------------------------------------------------
number() { case $2 in '' | *[!0-9]* | 0*) fail "$1 needs a number, not '$2'" ;; esac; }
tasks='' cpus='' folder='' shares='' nodes='' per_node='' listed='' excluded='' relative=0 cyclic=''
while [ $# -gt 0 ]; do
    word=$1 value=
    shift
    # A value stands behind =, behind the letter, or in the next word.
    case $word in
    --) break ;;
    --*=*) value=${word#*=} word=${word%%=*} ;;
    -[ncNJoeDmtpAwxGigr]?*) value=${word#??} word=${word%"${word#??}"} ;;
    --label | --label-io | --exclusive | --exact | --overlap | --unbuffered | --kill-on-bad-exit) ;;
    --no-kill | --overcommit | --quiet | --verbose | --preserve-env | --pty | --contiguous) ;;
    --*) value=${1-} && [ $# -gt 0 ] && shift ;;
    -[ncNJoeDmtpAwxGigr]) value=${1-} && [ $# -gt 0 ] && shift ;;
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
    --ntasks-per-node | --tasks-per-node) number "$word" "$value" && per_node=$value ;;
    -l | --label | --label-io) label=yes ;;
    -o | --output) out=$value ;;
    -e | --error) err=$value ;;
    -D | --chdir) folder=$value ;;
    -K | --kill-on-bad-exit) [ "${value:-1}" = 0 ] || kill_all=yes ;;
    -O | --overcommit | --overlap | -s) shares=yes ;;
    -N | --nodes)
        number "$word" "${value%%-*}" && nodes=${value%%-*}
        [ "$nodes" -le "$count" ] || fail "$nodes nodes, and the script has $count"
        ;;
    -w | --nodelist) listed=$value ;;
    -x | --exclude) excluded=$value ;;
    -r | --relative) relative=$value ;;
    -m | --distribution)
        case $value in
        cyclic*) cyclic=yes ;;
        plane* | arbitrary*) [ "$count" -eq 1 ] || fail "$word $value does not work across pods" ;;
        esac
        ;;
    --mpi) case $value in pmi*) fail "there is no PMI in a pod: start the program by mpirun" ;; esac ;;
    -i | --input | --multi-prog | --het-group | --bcast | --jobid | --attach)
        fail "$word does not work in a pod"
        ;;
    -u | -Q | -v | -k | -E | -X | -J | -t | -p | -A | -G | -g | --*) ;;
    *) fail "unknown option $word" ;;
    esac
done
[ $# -gt 0 ] || fail "no command given"
[ -z "$folder" ] || cd "$folder" || exit 1

all=${FLUXQUEUE_TASKS:-1}
if [ "${FLUXQUEUE_EACH_POD:-}" ]; then
    # The script runs in each pod, and each pod is one task. A narrower step leaves out the last ones.
    [ "${SLURM_PROCID:-0}" -lt "${tasks:-${per_node:-$all}}" ] || exit 0
    exec "$@"
fi
[ "${FLUXQUEUE_NODE:-0}" -eq 0 ] || fail "only the first pod starts steps"

# --- the nodes of the step ----------------------------------------------------------------------
numbers_of() { # a list of nodes: sets found
    found='' IFS=,
    for wanted in $1; do
        k=0 number=
        for host in $hosts; do
            case $wanted in "$host" | "${host%%.*}") number=$k ;; esac
            k=$((k + 1))
        done
        [ "$number" ] || fail "$wanted is not a node of the script: $hosts"
        found="$found $number"
    done
    IFS=$blanks
}
host_of() { # number: sets host
    k=0 IFS=,
    for host in $hosts; do [ "$k" -lt "$1" ] || break && k=$((k + 1)); done
    IFS=$blanks
}
allowed=0 most=1 blanks=$IFS
if [ "$count" -gt 1 ]; then
    numbers_of "$excluded"
    unwanted=$found
    numbers_of "$listed"
    allowed=$found most=0
    for k in $allowed; do most=$((most + 1)); done
    [ -z "$listed" ] || nodes=${nodes:-$most}
    number=$relative
    while [ "$number" -lt "$count" ] && [ "$most" -lt "${nodes:-$count}" ]; do
        case "$allowed $unwanted " in
        *" $number "*) ;;
        *) allowed="$allowed $number" most=$((most + 1)) ;;
        esac
        number=$((number + 1))
    done
fi
[ "$as" = flux ] && tasks=${tasks:-$((${per_node:-1} * ${nodes:-1}))}
[ -z "$per_node" ] || [ "$tasks" ] || tasks=$((per_node * ${nodes:-$most}))
# As in Slurm, a number of nodes without one of tasks means one task on each.
[ "$count" -eq 1 ] || [ -z "$nodes" ] || tasks=${tasks:-${SLURM_NTASKS:-$nodes}}
tasks=${tasks:-$all}
[ -z "$per_node" ] || nodes=${nodes:-$(((tasks + per_node - 1) / per_node))}
nodes=${nodes:-$most}
[ "$nodes" -le "$tasks" ] || nodes=$tasks
[ "$nodes" -le "$most" ] || fail "$nodes nodes, and $most are left"

cpus=${cpus:-${SRUN_CPUS_PER_TASK:-${SLURM_CPUS_PER_TASK:-}}}
most=${FLUXQUEUE_CPUS:-$all}
need=$((((tasks + nodes - 1) / nodes) * ${cpus:-1}))
where="the script"
[ "$nodes" -eq "$count" ] || where="so many nodes"
[ "$shares" ] && need=0
[ "$need" -le "$most" ] ||
    fail "$tasks tasks of ${cpus:-1} cpus are more than the $((most * nodes)) of $where"
input='' # what the step reads is in this pod
[ "$count" -eq 1 ] || [ "$("$box" readlink /proc/self/fd/0)" = /dev/null ] || input=yes

mkdir -p "$here/steps" "$here/tasks"
locked() {
    until mkdir "$here/lock" 2>/dev/null; do
        # The process that holds it may have been killed.
        read -r owner 2>/dev/null <"$here/lock/pid" && ! kill -0 "$owner" 2>/dev/null && rm -rf "$here/lock"
        pause
    done
    echo $$ >"$here/lock/pid"
}
unlocked() { rm -rf "$here/lock"; }
in_use() { # sets used_K of each node
    for k in $allowed; do eval "used_$k=0"; done
    for step in "$here"/steps/*; do
        read -r owner taken 2>/dev/null <"$step" || continue
        kill -0 "$owner" 2>/dev/null || { rm -f "$step" && continue; }
        for one in $taken; do
            eval "used_${one%%:*}=\$((\${used_${one%%:*}:-0} + ${one##*:}))"
        done
    done
}
choose() { # the first nodes with so many free cpus: sets at
    at='' found=0
    for k in $allowed; do
        eval "used=\$used_$k"
        if [ $((used + need)) -le "$most" ]; then
            at="$at $k" found=$((found + 1))
            [ "$found" -lt "$nodes" ] || return 0
        elif [ "$input" ] && [ "$k" -eq 0 ]; then
            return 1
        fi
    done
    return 1
}
# A step waits until its cpus are free, as with --exact.
while :; do
    locked
    in_use
    choose && break
    unlocked
    pause
done
id=0
read -r id 2>/dev/null <"$here/next"
echo $((id + 1)) >"$here/next"
scratch=$here/step.$id
mkdir -p "$scratch"
# The tasks are spread evenly. Those of a node are neighbours, unless they are dealt out in turn.
taken='' names='' first=0 index=0 rest=$((tasks % nodes))
for node in $at; do
    width=$((tasks / nodes + (index < rest ? 1 : 0))) ranks='' place=0
    while [ "$place" -lt "$width" ]; do
        if [ "$cyclic" ]; then rank=$((index + place * nodes)); else rank=$((first + place)); fi
        ranks="$ranks $rank" place=$((place + 1))
    done
    echo "${ranks# }" >"$scratch/ranks.$node"
    taken="$taken $node:$((need > 0 ? width * ${cpus:-1} : 0))"
    host_of "$node"
    names=$names${names:+,}$host
    [ "$node" -eq 0 ] || others="$others $node"
    first=$((first + width)) index=$((index + 1))
done
echo "$$$taken" >"$here/steps/$id"
unlocked
for signal in HUP INT QUIT USR1 USR2 TERM CONT; do
    # shellcheck disable=SC2064  # the present value is meant
    trap "pass_on $signal" "$signal"
done
trap 'rm -rf "$here/steps/$id" "$scratch"' EXIT

# --- its variables ------------------------------------------------------------------------------
on_nodes() { [ "$2" -eq 1 ] && echo "$1" || echo "$1(x$2)"; } # tasks, nodes
each=$(on_nodes $((tasks / nodes)) $((nodes - rest)))
[ "$rest" -eq 0 ] || each="$(on_nodes $((tasks / nodes + 1)) "$rest"),$each"
SLURM_NTASKS=$tasks SLURM_NPROCS=$tasks SLURM_STEP_NUM_TASKS=$tasks SLURM_STEP_ID=$id SLURM_STEPID=$id
SLURM_TASKS_PER_NODE=$each SLURM_STEP_TASKS_PER_NODE=$each SLURM_NODEID=0 FLUX_JOB_SIZE=$tasks
SLURM_STEP_NUM_NODES=$nodes SLURM_NNODES=$nodes FLUX_JOB_NNODES=$nodes
export SLURM_NTASKS SLURM_NPROCS SLURM_STEP_NUM_TASKS SLURM_STEP_ID SLURM_STEPID
export SLURM_TASKS_PER_NODE SLURM_STEP_TASKS_PER_NODE SLURM_NODEID FLUX_JOB_SIZE
export SLURM_STEP_NUM_NODES SLURM_NNODES FLUX_JOB_NNODES
[ -z "$names" ] || export SLURM_STEP_NODELIST="$names" SLURM_NODELIST="$names"
[ -z "$cpus" ] || export SLURM_CPUS_PER_TASK="$cpus"

# --- the tasks in other pods --------------------------------------------------------------------
variables() { # those that the script and srun have set, for the other pods
    "$box" cat /proc/self/environ | "$box" tr '\n\000' '\001\n' >"$scratch/now"
    "$box" cut -d= -f1 "$scratch/now" >"$scratch/names"
    "$box" cut -d= -f1 "$here/environment" | "$box" grep -vxFf "$scratch/names" | "$box" sed 's/^/u/'
    "$box" grep -vxFf "$here/environment" "$scratch/now" | "$box" sed 's/^/e/'
    printf 'FLUXQUEUE_FOLDER=%s\000' "$PWD" | "$box" tr '\n\000' '\001\n' | "$box" sed 's/^/e/'
    printf '%s\n' "eFLUXQUEUE_STEP=$id" "eFLUXQUEUE_LABEL=$label" "eFLUXQUEUE_GPUS=$gpus"
}
target() { # a file, the stream, rank, number of the node, node
    file=$scratch/$2
    [ -z "$1" ] || file=$(name "$1" "$3" "$4" "$5")
    case $file in /*) echo "$file" ;; *) echo "$PWD/$file" ;; esac
}
send() { # its name, ranks, node, number of the node
    {
        "$box" cat "$scratch/variables"
        printf '%s\n' "eFLUXQUEUE_RANKS=$2" "eSLURM_NODEID=$4"
        "$box" cat "$scratch/words"
    } >"$scratch/$1.request"
    echo "$2" >"$scratch/$1.ranks"
    host_of "$3"
    target "$out" out "${2%% *}" "$4" "$host" >"$scratch/$1.out"
    target "${err:-$out}" err "${2%% *}" "$4" "$host" >"$scratch/$1.err"
    if order "$3" "part $id $1"; then parts=$((parts + 1)); else echo "$as: $host is lost" >&2; fi
}
relay() { # what comes from the other pods
    exec 7>&- 8>&- 9>&-
    "$box" dd bs=65536 2>/dev/null || { pass_on PIPE && "$box" cat >/dev/null; }
}
parts=0 index=0 relays=''
for node in $at; do # the first task of a step empties the files
    read -r ranks <"$scratch/ranks.$node"
    host_of "$node"
    for rank in $ranks; do
        for file in "$out" "$err"; do [ "$file" ] && : >"$(name "$file" "$rank" "$index" "$host")"; done
    done
    index=$((index + 1))
done
for node in $others; do
    waited=0
    host_of "$node"
    until [ -p "$here/agents/$node.in" ]; do
        [ ! -e "$here/agents/$node.lost" ] || fail "$host is lost"
        waited=$((waited + 1))
        [ "$waited" -ne 100 ] || echo "$as: waiting for the pod $host" >&2
        pause
    done
done
if [ "$others" ]; then
    [ -z "$kill_all" ] || : >"$scratch/kill"
    "$box" mkfifo "$scratch/out" "$scratch/err" "$scratch/over"
    exec 7<>"$scratch/out" 8<>"$scratch/err" 9<>"$scratch/over"
    (relay) <"$scratch/out" &
    relays=$!
    (relay) <"$scratch/err" >&2 &
    relays="$relays $!"
    variables >"$scratch/variables"
    printf '%s\000' "$@" | "$box" tr '\n\000' '\001\n' | "$box" sed 's/^/w/; $a .' >"$scratch/words"
    index=0
    for node in $at; do
        read -r ranks <"$scratch/ranks.$node"
        case $node,$out$err in
        0,*) ;;
        *%t*) for rank in $ranks; do send "$node.$rank" "$rank" "$node" "$index"; done ;;
        *) send "$node" "$ranks" "$node" "$index" ;;
        esac
        index=$((index + 1))
    done
fi
host_of 0
case " $at " in *" 0 "*) read -r ranks <"$scratch/ranks.0" && start "$ranks" "$@" ;; esac
finish
while [ "$parts" -gt 0 ]; do
    read -r part <&9 && parts=$((parts - 1))
done
exec 7>&- 8>&- 9>&-
for pid in $relays; do
    while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
done
worst=0 rank=0
while [ "$rank" -lt "$tasks" ]; do
    code=137
    read -r code 2>/dev/null <"$scratch/$rank"
    [ "$code" -gt "$worst" ] && worst=$code
    rank=$((rank + 1))
done
exit "$worst"
