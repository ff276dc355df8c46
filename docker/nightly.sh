#!/bin/sh
# One night of a cluster: suite nightly in RUNS runs, of three launches each or, under a LAUNCHER, of one; a report,
# whether the cluster is well, and a comparison with another night.
#   nightly.sh [LAUNCHER ...]      # nightly.sh srun --wait=60 --cpu-bind=none
# NIGHTS/<time>/ gets the runs, report.html, health.html, health.json, health.prom, verdict.md and verdict.json; NIGHTS
# has the history that health keeps (COLLBENCH_HISTORY may name another). It is compared with NIGHTS/baseline, a link that
# you make, or the night before. Exits with 0 where all is well, also where there is no other night yet; 1 unhealthy or
# slower; 3 no verdict, as after an upgrade; else what ended the first run that failed, after a report of those before;
# 130 after SIGTERM, SIGINT or SIGHUP, as the end of a container's grace period brings: what is finished is reported.
# MACHINE is what the history calls the machine, where its name changes every night; PROM a folder for node_exporter,
# which gets cases.prom and verdict.prom; HOOK a program that is run where the verdict is unhealthy (--on-unhealthy).
set -u
nights=${NIGHTS:-$PWD/nights}
runs=${RUNS:-4} # compare takes at least ten launches on both sides

# A shell has a trap run only once its foreground command has ended, and as a container's process 1 gets no other signal.
stopped='' signalled='' measured=''
trap 'stopped=yes signalled=yes; [ -z "$measured" ] || kill -TERM "$measured" 2> /dev/null' TERM INT HUP
run() {
    "$@" &
    await "$!"
}
measure() { # which a signal ends, so that the rest can be reported
    "$@" &
    measured=$!
    [ -z "$stopped" ] || kill -TERM "$measured" # before it was known
    await "$measured"
    measured=''
    return "$status"
}
await() {
    status=127 signalled=yes
    while [ -n "$signalled" ]; do # a signal ends the wait, not the child
        signalled=''
        wait "$1"
        waited=$?
        [ "$waited" = 127 ] || status=$waited # 127: it had been waited for
    done
    return "$status"
}

baseline=$nights/baseline
if [ ! -e "$baseline" ]; then
    baseline=
    for folder in "$nights"/*/; do # in the order of time
        [ -e "$folder/complete" ] && baseline=$folder
    done
fi

mkdir -p "$nights" || exit 5
night=$nights/$(date +%Y-%m-%dT%H%M%S)
while [ -e "$night" ]; do # one that began in this very second
    sleep 1
    night=$nights/$(date +%Y-%m-%dT%H%M%S)
done
mkdir "$night" || exit 5
code=0 number=1
while [ "$number" -le "$runs" ] && [ "$code" = 0 ] && [ -z "$stopped" ]; do
    measure "$@" collbench run nightly --budget "${BUDGET:-3m}" --output "$night" --tag nightly --format csv > "$night/$number.csv"
    code=$?
    number=$((number + 1))
done
set -- "$night"/*.jsonl
if [ -e "$1" ]; then # also of a night that was cut short: what broke it is named
    run collbench report "$@" --output "$night/report.html"
    [ -z "${PROM:-}" ] || run collbench report "$@" --output "$PROM/cases.prom"
    run collbench health "$@" --history "${COLLBENCH_HISTORY:-$nights/history.sqlite}" ${MACHINE:+--machine "$MACHINE"} \
        --output "$night/health.html" --output "$night/health.json" --output "$night/health.prom" \
        ${PROM:+--output "$PROM/verdict.prom"} ${HOOK:+--on-unhealthy "$HOOK"}
    health=$?
fi
[ -z "$stopped" ] || code=130
[ "$code" = 0 ] || exit "$code"
: > "$night/complete"
code=$health
[ -n "$baseline" ] || exit "$code"
sides() { printf '%s,' "$1"/*.jsonl; }
run collbench compare "$(sides "$baseline")" "$(sides "$night")" --gate-unpaired --tau "${TAU:-10%}" \
    --output "$night/verdict.md" --output "$night/verdict.json"
compared=$?
if [ "$code" = 0 ] || { [ "$code" = 3 ] && [ "$compared" != 0 ]; }; then # the graver one
    code=$compared
fi
exit "$code"
