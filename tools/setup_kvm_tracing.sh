#!/usr/bin/env bash
# Records KVM's events with the time stamp counter as clock, to put them beside a guest's trace. See --help.
set -euo pipefail

usage() {
    cat <<'TEXT'
Records KVM's events with time stamp counter ticks, and finds a guest's TSC offset.

Usage: setup_kvm_tracing.sh [OPTIONS] run COMMAND [ARGUMENT]…
       setup_kvm_tracing.sh [OPTIONS] start | stop | read | offsets | offset [TASK] | remove

  run COMMAND…    start, run COMMAND (such as qemu), stop, write the events to a file, say the offsets, remove;
                  the exit status is COMMAND's
  start           begin to record; before the guest is started: its offset is written when its CPUs are made
  stop            record no more; what was recorded stays
  read            print the events, oldest first; times are ticks
  offsets         print a line for each virtual CPU: task, number, offset
  offset [TASK]   print --tsc-offset=N, as `rftrace merge` takes it: guest's ticks = host's ticks + N.
                  TASK (a process or thread id) chooses one where there are guests with different offsets
  remove          stop and forget everything

Options:
  --all           record all KVM events instead of kvm_entry, kvm_exit and kvm_write_tsc_offset
  --buffer-kb N   memory for events, per CPU (default 4096)
  --name NAME     name of the tracefs instance (default rftrace-kvm)
  --output FILE   where `run` writes the events (default kvm-events.txt)
  --tracefs DIR   where tracefs is mounted (default: as /proc/mounts says)
  --help          print this

Only tracefs instances of its own are made and changed, so other tracing on the machine goes on undisturbed. The
offsets are recorded in a second instance, where other events cannot push them out. Needs root.
Exit status: 0, 1 when something is missing or wrong, 2 for wrong arguments.
TEXT
}

say() { printf 'setup_kvm_tracing: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}
wrong() {
    say "$*; see --help"
    exit 2
}

# Where tracefs is mounted, and that it can do what is needed.
find_tracefs() {
    if [ -z "$tracefs" ]; then
        tracefs=$(awk '$3 == "tracefs" { print $2; exit }' /proc/mounts)
        [ -n "$tracefs" ] || fail "tracefs is not mounted: mount -t tracefs nodev /sys/kernel/tracing"
    fi
    [ ! -d "$tracefs" ] || [ -x "$tracefs" ] || fail "$tracefs: not accessible: run this as root"
    [ -d "$tracefs/instances" ] || fail "$tracefs/instances: there is no tracefs with instances; choose one by --tracefs"
    [ -w "$tracefs/instances" ] || fail "$tracefs/instances: not writable: run this as root"
    instance=$tracefs/instances/$name
    offsets=$instance.offsets
}

check_kernel() {
    [ -d "$tracefs/events/kvm" ] ||
        fail "$tracefs/events/kvm: the kernel has no KVM events: load the module (modprobe kvm-intel or kvm-amd)"
    [ -d "$tracefs/events/kvm/kvm_write_tsc_offset" ] ||
        fail "$tracefs/events/kvm/kvm_write_tsc_offset: this kernel's KVM does not tell offsets"
    grep -qw 'x86-tsc' "$tracefs/trace_clock" ||
        fail "$tracefs/trace_clock: the kernel has no clock x86-tsc; it has $(cat "$tracefs/trace_clock")"
}

need_instance() { [ -d "$instance" ] || fail "$instance: nothing is recorded: start first, or choose another --name"; }

# put VALUE FILE
put() { { printf '%s\n' "$1" >"$2"; } 2>/dev/null || fail "$2: cannot be set to '$1'"; }

# new_instance DIR
new_instance() {
    mkdir "$1" || fail "$1: cannot be made: remove it if it is left from earlier, or choose another --name"
    put x86-tsc "$1/trace_clock"
    put "$buffer_kb" "$1/buffer_size_kb"
}

# Makes both instances and begins; leaves none behind when that fails.
start() {
    check_kernel
    if [ -d "$instance" ] || [ -d "$offsets" ]; then
        fail "$instance: is there already: remove it, or choose another --name"
    fi
    trap remove EXIT
    new_instance "$offsets"
    put 1 "$offsets/events/kvm/kvm_write_tsc_offset/enable"
    new_instance "$instance"
    if [ "$all" = 1 ]; then
        put 1 "$instance/events/kvm/enable"
    else
        for event in kvm_entry kvm_exit kvm_write_tsc_offset; do
            [ ! -d "$instance/events/kvm/$event" ] || put 1 "$instance/events/kvm/$event/enable"
        done
    fi
    trap - EXIT
}

stop() {
    put 0 "$instance/tracing_on"
    put 0 "$offsets/tracing_on"
}

read_events() {
    cat "$instance/trace"
    lost=$(cat "$instance"/per_cpu/cpu*/stats | awk '/^overrun:|^dropped events:/ { sum += $NF } END { print sum + 0 }')
    [ "$lost" = 0 ] || say "the oldest $lost events are lost: more memory with --buffer-kb"
}

remove() {
    for dir in "$instance" "$offsets"; do
        [ ! -d "$dir" ] || rmdir "$dir" || fail "$dir: cannot be removed: some program still has a file of it open"
    done
}

# signed N: an unsigned number of 64 bits as a signed one.
signed() {
    if [ ${#1} -lt 19 ] || { [ ${#1} -eq 19 ] && [[ ! $1 > 9223372036854775807 ]]; }; then
        echo "$1"
    else # N - 2^64, in two parts that the shell's arithmetic can hold
        echo "$(((${1:0:-9} - 18446744073) * 1000000000 + 10#${1: -9} - 709551616))"
    fi
}

# A line for each virtual CPU that had its offset written, with what was written last: task, number, offset.
list_offsets() {
    sed -nE 's/^ *(.*)-([0-9]+) +\[[0-9]+\].* kvm_write_tsc_offset: vcpu=([0-9]+) prev=[0-9]+ next=([0-9]+).*/\2 \3 \4 \1/p' \
        "$offsets/trace" |
        awk '{ key = $1 " " $2; if (!(key in last)) order[++n] = key; last[key] = $0 }
            END { for (i = 1; i <= n; i++) print last[order[i]] }' |
        while read -r task vcpu next comm; do
            printf 'task %s (%s) vcpu %s: offset %s\n' "$task" "$comm" "$vcpu" "$(signed "$next")"
        done
}

# is_of TASK LINE: whether a line of `list_offsets` is that of a thread, or of a thread of a process that still runs.
is_of() {
    read -r _ task _ <<<"$2"
    [ "$task" = "$1" ] || [ -d "/proc/$1/task/$task" ]
}

# print_offset [TASK]: fails where it is not one.
print_offset() {
    local lines found=() line
    lines=$(list_offsets)
    [ -n "$lines" ] || fail "$offsets: no offset was written: start this before the guest"
    while read -r line; do
        if [ $# = 0 ] || is_of "$1" "$line"; then
            found+=("${line##* }")
        fi
    done <<<"$lines"
    mapfile -t found < <(printf '%s\n' "${found[@]}" | sort -u)
    if [ ${#found[@]} != 1 ] || [ -z "${found[0]}" ]; then
        printf '%s\n' "$lines" >&2
        if [ $# = 0 ]; then
            fail "guests with different offsets: choose one by a task, as in: offset TASK"
        fi
        fail "task $1: no offset of its own; there are those above"
    fi
    echo "--tsc-offset=${found[0]}"
}

run() {
    command -v -- "$1" >/dev/null || fail "$1: no such command"
    { : >"$output"; } 2>/dev/null || fail "$output: cannot be written; choose another --output"
    start
    trap remove EXIT
    trap : INT TERM # the command gets them too, and its end is waited for
    local status=0
    "$@" || status=$?
    stop
    read_events >"$output" || fail "$output: the events could not be written"
    say "$(grep -vc '^#' "$output" || true) events are in $output"
    list_offsets >&2
    [ -n "$(list_offsets)" ] || say "no guest was started: no TSC offset was written"
    exit "$status"
}

all=0 buffer_kb=4096 name=rftrace-kvm output=kvm-events.txt tracefs=
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) usage && exit ;;
    --all) all=1 && shift ;;
    --buffer-kb | --name | --output | --tracefs)
        [ $# -gt 1 ] || wrong "$1 needs a value"
        option=${1#--}
        printf -v "${option//-/_}" %s "$2"
        shift 2
        ;;
    -*) wrong "$1: no such option" ;;
    *) break ;;
    esac
done
[[ $buffer_kb =~ ^[1-9][0-9]*$ ]] || wrong "--buffer-kb $buffer_kb: not a number of kilobytes"
[[ $name =~ ^[A-Za-z0-9_][A-Za-z0-9_.-]*$ ]] || wrong "--name $name: letters, digits, and . _ - only"

command=${1:-}
[ $# = 0 ] || shift
case $command in
run) [ $# -gt 0 ] || wrong "run needs a command" ;;
offset) [ $# -le 1 ] || wrong "offset: too many arguments" ;;
start | stop | read | offsets | remove) [ $# = 0 ] || wrong "$command: too many arguments" ;;
"") wrong "what shall be done?" ;;
*) wrong "$command: no such command" ;;
esac
find_tracefs
case $command in
run | start) "$command" "$@" ;;
*)
    need_instance
    case $command in
    read) read_events ;;
    offsets) list_offsets ;;
    offset) print_offset "$@" ;;
    *) "$command" ;;
    esac
    ;;
esac
