#!/bin/sh
# The connections between the pods of a batch script that runs once, on several nodes. The first pod
# listens, and the others connect to it: none of them accepts a command from outside. Both sides show
# that they know the token of the job, which does not cross the network. batch_step.py starts it.
#
# Each agent has one connection for its orders, and two more for each part of a step: its output and
# its errors. srun.sh writes the orders into agents/K.in, and reads in step.ID/over which parts are over.
here=${FLUXQUEUE_RUN:-/run/fluxqueue}
box=$here/busybox
port=${FLUXQUEUE_PORT:-6818}
secret=$(cat "${FLUXQUEUE_TOKEN:-/run/fluxqueue-token/token}") || exit 1
first=${FLUXQUEUE_FIRST:-${FLUXQUEUE_HOSTS%%,*}}
fail() { echo "fluxqueue: $*" >&2; exit 1; }
pause() { sleep 0.1 2>/dev/null || sleep 1; }

take() { IFS= read -r -t 20 -n "$1" taken; } # as many characters at most
random() { "$box" head -c 32 /dev/urandom | "$box" sha256sum | "$box" cut -c 1-32; }
proof() { echo "$secret $1 $2 $3 $secret" | "$box" sha256sum | "$box" cut -c 1-64; }
meet() { # what the connection is for
    mine=$(random)
    take 33
    theirs=$taken
    echo "$mine $(proof agent "$theirs" "$mine")"
    take 65
    [ "$taken" = "$(proof first "$mine" "$theirs")" ] || fail "no connection to the first pod"
    echo "$*"
}
dial() { exec "$box" nc -w 20 "$first" "$port" -e "$box" sh "$here/agent" "$@"; }

over() { # step, part
    mkdir "$here/step.$1/$2.over" || return
    for rank in $(cat "$here/step.$1/$2.ranks"); do
        [ -s "$here/step.$1/$rank" ] || echo 137 >"$here/step.$1/$rank"
    done
    echo "$2" 1<>"$here/step.$1/over"
}
hear() { # node: what its agent says, until its end
    while read -r word step what code; do
        case $word in
        code)
            echo "$code" >"$here/step.$step/$what"
            [ "$code" -ne 0 ] && [ -e "$here/step.$step/kill" ] &&
                read -r srun rest <"$here/steps/$step" && kill -s TERM "$srun"
            ;;
        over) over "$step" "$what" ;;
        esac
    done
    : >"$here/agents/$1.lost"
    rm -f "$here/agents/$1.in"
    for file in "$here"/step.*/"$1".request "$here"/step.*/"$1".*.request; do
        [ -e "$file" ] || continue
        step=${file%/*} part=${file##*/}
        over "${step##*/step.}" "${part%.request}"
    done
    echo gone >&5
} 2>/dev/null
direct() { # node: hand it its orders
    [ ! -e "$here/agents/$1.in" ] && "$box" mkfifo "$here/agents/$1.new" || fail "node $1 is there twice"
    exec 5<>"$here/agents/$1.new" 3<&0
    hear "$1" <&3 &
    mv "$here/agents/$1.new" "$here/agents/$1.in"
    code=
    read -r code 2>/dev/null <"$here/ended" && echo "end $code"
    while read -r line <&5 && [ "$line" != gone ]; do echo "$line"; done
}

role=$1
shift
case $role in
serve) # so many l are the length of the queue of connections that wait
    mkdir -p "$here/agents"
    # What the script finds. Of its variables, tasks in other pods get those that it changes.
    "$box" cat /proc/self/environ | "$box" tr '\n\000' '\001\n' >"$here/environment"
    "$box" nc "-$(printf %0256d 0 | "$box" tr 0 l)" -p "$port" -e "$box" sh "$here/agent" accept \
        </dev/null >/dev/null &
    echo "$!" >"$here/server"
    ;;
accept)
    mine=$(random)
    echo "$mine"
    take 98
    theirs=${taken%% *}
    [ "$taken" = "$theirs $(proof agent "$mine" "$theirs")" ] || exit 1
    proof first "$theirs" "$mine"
    read -r word step part
    case $word in
    node) direct "$step" ;;
    out | err)
        read -r target <"$here/step.$step/$part.$word" || exit 1
        exec 9>>"$target"
        if [ "$word" = out ]; then cat "$here/step.$step/$part.request"; else echo ready; fi
        # Not cat: its sendfile locks a pipe until the next bytes come, and the others cannot write.
        exec "$box" dd bs=65536 >&9 2>/dev/null
        ;;
    esac
    ;;
join)
    # Kubernetes ends all pods at once. What then becomes of the job is the first one's matter.
    trap '[ -e "$here/joined" ] || exit 143' TERM
    until [ -e "$here/joined" ]; do
        (dial orders 3>&2 2>/dev/null)
        code=$?
        [ -e "$here/joined" ] || pause
    done
    exit "$code"
    ;;
orders)
    exec 2>&3 3>&-
    trap : TERM
    meet node "$FLUXQUEUE_NODE"
    : >"$here/joined"
    while read -r word step what; do
        case $word in
        part)
            {
                (dial errors "$step" "$what" 6>&1)
                echo "over $step $what"
            } </dev/null &
            ;;
        signal) "$here/signal" "$step" "$what" ;;
        end) exit "$step" ;;
        esac
    done
    fail "lost the first pod"
    ;;
errors)
    meet err "$@"
    read -r word || exit 1
    exec 3>&1
    dial output "$@"
    ;;
output)
    meet out "$@"
    set --
    while IFS= read -r line && [ "$line" != . ]; do
        kind=${line%"${line#?}"} line=${line#?}
        case $line in
        *"$(printf '\001')"*)
            line=$(printf '%s.' "$line" | "$box" tr '\001' '\n')
            line=${line%.}
            ;;
        esac
        case $kind in
        u) set -- "$@" -u "$line" ;;
        e) set -- "$@" "$line" ;;
        w)
            [ "$in_program" ] || set -- "$@" "$here/part"
            in_program=yes
            set -- "$@" "$line"
            ;;
        esac
    done
    [ "$line" = . ] || exit 1
    exec "$box" env "$@" </dev/null 2>&3 3>&-
    ;;
end) # the result: an agent that has not come yet gets it when it comes, unless it is a failure
    echo "$1" >"$here/ended"
    node=1
    while [ "$node" -lt "$FLUXQUEUE_NODES" ]; do
        [ -p "$here/agents/$node.in" ] && echo "end $1" 1<>"$here/agents/$node.in"
        node=$((node + 1))
    done
    node=1
    while [ "$node" -lt "$FLUXQUEUE_NODES" ]; do
        until [ -e "$here/agents/$node.lost" ]; do
            [ "$1" -eq 0 ] || [ -p "$here/agents/$node.in" ] || break
            pause
        done
        node=$((node + 1))
    done
    read -r server <"$here/server" && kill "$server"
    ;;
esac
