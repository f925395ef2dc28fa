"""Options that several verbs share, defaults from `blindsight.toml`, messages about wrong usage,
examples for the help of every verb, and the text that `blindsight` prints without a verb.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import click
import typer
from typer.core import TyperCommand, TyperGroup

from blindsight.app.defaults import LARGE_EPSILON
from blindsight.core.errors import BlindsightError, InvalidParameter

__all__ = [
    "EXAMPLES",
    "FIRST",
    "OFFLINE_HELP",
    "RENAMED",
    "ActorOption",
    "LargeEpsilonOption",
    "LedgerOption",
    "MakeByDefault",
    "PurposeOption",
    "TeachingCommand",
    "TeachingGroup",
    "config_defaults",
    "present_name",
    "unit_name",
]

#: Former names of verbs, which this version still accepts.
RENAMED = {"hash": "protect", "ledger": "budget", "metric": "compare"}
#: Options that must be typed each time: a file of defaults cannot set them.
_ONLY_TYPED = ("accept-chance", "allow-large-epsilon", "new-release", "prune", "seed", "help")
_CONFIG = "blindsight.toml"
_MAX_CONFIG_BYTES = 1 << 16
_UNITS = {"photo": "record", "image": "record"}

#: What the option does that every verb has.
OFFLINE_HELP = "Fetch nothing: weights and words must already be on this machine."

#: The ledger to charge.
LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        envvar="BLINDSIGHT_LEDGER",
        help="Charge this ledger (a file or a postgresql:// address) before anything is released.",
    ),
]
#: The person who requests a release.
ActorOption = Annotated[
    str | None,
    typer.Option(
        "--actor",
        envvar="BLINDSIGHT_ACTOR",
        help="Who asks for the release; kept in the ledger (default: the system's user).",
        show_default=False,
    ),
]
#: The purpose of a release.
PurposeOption = Annotated[
    str,
    typer.Option(
        "--purpose",
        help="What the release is for; kept in the ledger.",
        show_default=False,
    ),
]


def _allow_large(context: typer.Context, allowed: bool) -> bool:
    """Refuse a large epsilon without the option, which must be declared after `epsilon`."""
    epsilon = context.params.get("epsilon")
    if epsilon is not None and epsilon > LARGE_EPSILON and not allowed:
        raise InvalidParameter(
            f"--epsilon {epsilon:g} protects next to nothing: values from 1 to 16 are usual. "
            "Nothing was released. If you mean it, add --allow-large-epsilon."
        )
    return allowed


#: The option without which an epsilon above 32 is refused.
LargeEpsilonOption = Annotated[
    bool,
    typer.Option(
        "--allow-large-epsilon",
        callback=_allow_large,
        help=f"Accept an epsilon above {LARGE_EPSILON:g}, which protects next to nothing.",
    ),
]


def _switch_off(ctx: click.Context, param: click.Parameter, offline: bool) -> bool:
    """Switch fetching off for this process, and for those that it starts."""
    if offline:
        os.environ["BLINDSIGHT_OFFLINE"] = "1"
    return offline


def _accept_offline(command: click.Command) -> None:
    """Add the option `--offline`, unless the command has one of its own."""
    if not any("--offline" in param.opts for param in command.params):
        option = click.Option(
            ["--offline"], is_flag=True, expose_value=False, callback=_switch_off, help=OFFLINE_HELP
        )
        command.params.append(option)


def unit_name(value: str | None) -> str | None:
    """Accept "photo" and "image" where a unit of privacy is "record"."""
    return None if value is None else _UNITS.get(value, value)


def present_name(path: str) -> str:
    """Replace a former name of a verb in its path by the present one."""
    verb, space, rest = path.partition(" ")
    return RENAMED.get(verb, verb) + space + rest


class TeachingCommand(TyperCommand):
    """A command whose errors name its own options and show what to type, and which accepts
    `--offline` like the program itself.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _accept_offline(self)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as usual; on an error, explain what the option is for or how it is written."""
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            message = _what_is_missing(ctx, error.param)
            raise click.MissingParameter(
                message, ctx, error.param, error.param_hint, error.param_type
            ) from None
        except click.NoSuchOption as error:
            if error.option_name not in {
                word for each in ctx.find_root().command.params for word in each.opts
            }:
                raise
            raise click.UsageError(
                f"{error.option_name} comes before the verb. For example: blindsight "
                f"{error.option_name} {_path_of(ctx)} ...",
                ctx,
            ) from None
        except click.BadOptionUsage as error:
            param = next((each for each in self.params if error.option_name in each.opts), None)
            message = f"{error.message} {_what_is_missing(ctx, param)}"
            raise click.BadOptionUsage(error.option_name, message, ctx) from None
        except click.BadParameter as error:
            message = _plain_type_error(error.message)
            raise click.BadParameter(message, ctx, error.param, error.param_hint) from None

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; in its errors, names of parameters become names of options."""
        try:
            return super().invoke(ctx)
        except BlindsightError as error:
            if error.args and isinstance(error.args[0], str):
                error.args = (_in_option_words(error.args[0], self), *error.args[1:])
            raise


class TeachingGroup(TyperGroup):
    """A group of verbs whose errors say where an option belongs that was typed before the verb."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.invoke_without_command:
            _accept_offline(self)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as usual; on an unknown option, name the verb that has it."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            _say_where(self, ctx, args, error)


class MakeByDefault(TeachingGroup):
    """A group of verbs in which `GROUP FOLDER OUT` means `GROUP make FOLDER OUT`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `make` if the first argument is not a verb."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["make", *args]
        return super().parse_args(ctx, args)


def _what_is_missing(ctx: click.Context, param: click.Parameter | None) -> str:
    """Explain what a missing option is for, with an example."""
    parts = []
    if param is not None and getattr(param, "help", None):
        parts.append(str(getattr(param, "help", "")).rstrip(".") + ".")
    if param is not None and "--ledger" in param.opts:
        parts.append(
            "Give it here, or once for all commands: export BLINDSIGHT_LEDGER=budget.db, or the "
            f'line ledger = "budget.db" in {_CONFIG}.'
        )
    examples = EXAMPLES.get(present_name(_path_of(ctx)), ())
    if examples:
        words = () if param is None else param.opts
        fitting = (line for line in examples if any(word in line.split() for word in words))
        parts.append(f"For example: {next(fitting, examples[0])}")
    return " ".join(parts)


def _path_of(ctx: click.Context) -> str:
    """Return the path of the verb, without the name of the program."""
    names: list[str] = []
    while ctx.parent is not None:
        names.insert(0, ctx.info_name or "")
        ctx = ctx.parent
    return " ".join(names)


def _plain_type_error(message: str) -> str:
    if match := re.match(r"('.*') does not match the formats? '%Y-%m-%d'", message):
        return f"{match[1]} is not a day. Write it as YYYY-MM-DD, for example 2024-05-31."
    return message.replace("a valid float", "a number").replace("a valid integer", "a whole number")


def _in_option_words(message: str, command: click.Command) -> str:
    """Turn a message about Python's parameters into one about the command's options.

    The parameter at the beginning of a message becomes its option, a keyword argument followed by
    its option in parentheses becomes the option, and "(in Python: ...)" is removed.
    """
    message = re.sub(r" \(in Python: .*\)", "", message)
    message = re.sub(r"\b\w+=\w* \((--?[\w-]+)\)", r"\1", message)
    name, space, rest = message.partition(" ")
    for param in command.params:
        if isinstance(param, click.Option) and param.name == name:
            option = next((word for word in param.opts if word.startswith("--")), param.opts[0])
            return f"{option}{space}{rest}"
    return message


def _say_where(
    group: TyperGroup, ctx: click.Context, args: list[str], error: click.NoSuchOption
) -> NoReturn:
    """Raise an error that names the verb which has the option, or the given error."""
    name = error.option_name
    named = [word for word in args if word in group.commands]
    for verb in [*named, "search", *group.list_commands(ctx)]:
        if verb in group.commands and name in _options_below(group.commands[verb]):
            command = " ".join(filter(None, ("blindsight", _path_of(ctx), verb)))
            raise click.UsageError(
                f"{name} comes after the verb. For example: {command} ... {name}", ctx
            ) from None
    raise error


def _options_below(command: click.Command) -> set[str]:
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    own = {word for param in command.params for word in param.opts}
    return own.union(*(_options_below(each) for each in inner))


def config_defaults(root: click.Group) -> tuple[Path, dict[str, object]] | None:
    """Read defaults of options from `blindsight.toml`, or from the file in BLINDSIGHT_CONFIG.

    Keys are options without their dashes. Those at the top hold for every verb that has them, those
    in a table such as [protect] or [budget.grant] for that verb; what is typed takes precedence.
    The table [workbench] belongs to `blindsight serve --config`.

    Parameters:
        root: the command line, whose verbs and options are the valid keys.

    Returns:
        The file and click's map of defaults; None if there is no file.

    Raises:
        InvalidParameter: if a key is not an option, or one that must be typed, or if the file is
            not TOML.
    """
    named = os.environ.get("BLINDSIGHT_CONFIG")
    path = Path(named or _CONFIG)
    if not path.is_file():
        if named:
            raise InvalidParameter(f"BLINDSIGHT_CONFIG names {path}, which is not a file.")
        return None
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise InvalidParameter(f"{path} is larger than a file of defaults may be (64 KiB).")
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"{path} is not a TOML file: {error}.") from None
    fields.pop("workbench", None)
    shared = {key: value for key, value in fields.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in fields.items() if isinstance(value, dict)}
    options = {word.removeprefix("--") for word in _options_below(root) if word.startswith("--")}
    for key in shared:
        _check_key(path, key, options)
    return path, _default_map(path, root, tables, shared, "")


def _default_map(
    path: Path,
    group: click.Group,
    tables: Mapping[str, object],
    shared: Mapping[str, object],
    above: str,
) -> dict[str, object]:
    unknown = set(map(present_name, tables)) - set(group.commands)
    if unknown:
        verb = f"{above} {sorted(unknown)[0]}".strip()
        raise InvalidParameter(
            f"{path} has a table [{verb.replace(' ', '.')}], and there is no verb {verb!r}. "
            "blindsight --help lists the verbs."
        )
    result: dict[str, object] = {}
    for verb, command in group.commands.items():
        table = tables.get(present_name(verb), tables.get(verb, {}))
        own = dict(table) if isinstance(table, dict) else {}
        name = f"{above} {verb}".strip()
        inner: dict[str, object] = {}
        if isinstance(command, click.Group):
            deeper = {key: value for key, value in own.items() if isinstance(value, dict)}
            inner = _default_map(path, command, deeper, shared, name)
            own = {key: value for key, value in own.items() if key not in deeper}
        options = {
            word.removeprefix("--"): param.name or ""
            for param in command.params
            if isinstance(param, click.Option)
            for word in param.opts
            if word.startswith("--")
        }
        for key in own:
            _check_key(path, key, set(options), f" of {name}")
        values = {key: value for key, value in shared.items() if _spelled(key) in options} | own
        result[verb] = {options[_spelled(key)]: value for key, value in values.items()} | inner
    return result


def _spelled(key: str) -> str:
    return key.replace("_", "-")


def _check_key(path: Path, key: str, options: set[str], of: str = "") -> None:
    if _spelled(key) in _ONLY_TYPED:
        raise InvalidParameter(
            f"{path} sets {key!r}, which has to be typed each time: --{_spelled(key)}. Take it out."
        )
    if _spelled(key) not in options:
        raise InvalidParameter(
            f"{path} sets {key!r}, which is no option{of}. Options are written without their "
            'dashes: ledger = "budget.db".'
        )


FIRST = """\
Blindsight: learn from images, and search them, without anyone seeing them.

See it first, on photographs that come with it (about a minute and a half):
  blindsight demo

Then your own photos:
  blindsight budget grant --ledger budget.db --dataset holiday --epsilon 8
  blindsight protect photos/ --out release --ledger budget.db --dataset holiday
  blindsight search release query.jpg

In the browser:                  blindsight serve --photos photos/
All verbs, and one of them:      blindsight help, blindsight help protect
Completion in your shell:        blindsight --install-completion"""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": (
        "blindsight demo",
        "blindsight demo --out trial --no-papers",
        "blindsight demo --offline",
    ),
    "data list": ("blindsight data list", "blindsight data list --json"),
    "data get": ("blindsight data get fashion-mnist", "blindsight data get words"),
    "encoder check": ("blindsight encoder check clip/",),
    "encoder export": ("blindsight encoder export lite2 lite2-onnx",),
    "watch": (
        "blindsight watch photos/ --out release --ledger budget.db --dataset holiday",
        "blindsight watch incoming/ --out release --people folder --most 3",
    ),
    "protect": (
        "blindsight protect photos/ --out release --ledger budget.db --dataset holiday",
        "blindsight protect scans/ --out release --people dicom --most 3",
        "blindsight protect photos/ --out release --about 'forest, glacier, sea'",
        "blindsight protect photos/ --out release --prune",
    ),
    "search": (
        "blindsight search release query.jpg",
        'blindsight search release --words "dog on a beach" -k 20',
        "blindsight search release query.jpg --rerank 200 --html hits.html",
    ),
    "open": (
        "blindsight open release",
        "blindsight open release --fingerprint '785e f198 b237 b052 d38f 34d7 f2d6 1dba'",
    ),
    "answer": ("blindsight answer request.json release",),
    "index show": (
        "blindsight index show release",
        "blindsight index show release p3f9a2c41b7d05e6f",
    ),
    "index duplicates": ("blindsight index duplicates release",),
    "federate join": (
        "blindsight federate join here --name Harbour",
        "blindsight federate join here --name Coast --address coast.example:9092",
    ),
    "federate keys": (
        "blindsight federate keys roster coast.request harbour.request county.request "
        "--public public.npz",
    ),
    "federate accept": ("blindsight federate accept here roster",),
    "federate run": (
        "blindsight federate run here --data photos",
        "blindsight federate run here --data rows.npz --ledger budget.db",
    ),
    "federate user": ("blindsight federate user here --data photos",),
    "federate new": ("blindsight federate new app",),
    "federate update": (
        "blindsight federate update rows.npz mine.safetensors --public public.npz --epsilon 8",
    ),
    "federate merge": (
        "blindsight federate merge model.safetensors mine.safetensors --public public.npz",
    ),
    "federate watch": ("blindsight federate watch here",),
    "federate simulate": (
        "blindsight federate simulate",
        "blindsight federate simulate --data rows.npz --users 8",
    ),
    "compare check": ("blindsight compare check pairs.csv",),
    "compare learn": (
        "blindsight compare learn pairs.csv --features table.csv --epsilon 1",
        "blindsight compare learn pairs.csv --images faces/ --unit person --person people.csv:who "
        "--select 2",
    ),
    "compare predict": ("blindsight compare predict 4000 30 --epsilon 1",),
    "compare distance": (
        "blindsight compare distance metric.safetensors a.jpg b.jpg --images faces/ "
        "--false-accept 0.05",
        "blindsight compare distance plain a.jpg --images faces/",
    ),
    "compare clusters": (
        "blindsight compare clusters metric.safetensors --images faces/ --out groups.csv",
    ),
    "sketch": (
        "blindsight sketch digits/ digits.sketches --q Q3",
        "blindsight sketch recover digits.sketches --originals digits/ --gallery seen.svg",
    ),
    "send make": (
        "blindsight send xrays/ xrays.statistics --epsilon 1 --ledger budget.db --dataset xrays",
        "blindsight send letters/ letters.statistics --encoder gradients --person people.csv:who",
    ),
    "send predict": ("blindsight send predict 5000 10 --epsilon 1",),
    "send fit": ("blindsight send fit north.statistics south.statistics --test own/",),
    "sketch make": ("blindsight sketch digits/ digits.sketches --q Q3",),
    "sketch recover": (
        "blindsight sketch recover digits.sketches --originals digits/ --gallery seen.svg",
    ),
    "train": ("blindsight train digits.sketches --out model.safetensors",),
    "tag start": ('blindsight tag start "dog,beach,person" --out tagger.safetensors',),
    "tag train": (
        "blindsight tag train photos/ --labels labels.csv --vocabulary words.txt --epsilon 2",
    ),
    "tag apply": (
        "blindsight tag apply tagger.safetensors photos/",
        "blindsight tag apply tagger.safetensors photos/ --csv",
        "blindsight tag apply tagger.safetensors photos/ --out sidecars/ --format xmp",
    ),
    "audit": (
        "blindsight audit release --vault release.vault --out out/audit",
        "blindsight audit tagger.safetensors",
        "blindsight audit --all",
    ),
    "budget grant": ("blindsight budget grant --ledger budget.db --dataset holiday --epsilon 8",),
    "budget charge": (
        'blindsight budget charge --ledger budget.db --dataset holiday --epsilon 1 --what "counts" '
        "--key counts",
    ),
    "budget close": ("blindsight budget close --ledger budget.db --dataset holiday",),
    "budget show": ("blindsight budget show --ledger budget.db",),
    "budget entries": ("blindsight budget entries --ledger budget.db --dataset holiday --last 5",),
    "budget verify": ("blindsight budget verify --ledger budget.db",),
    "budget witness": ("blindsight budget witness --ledger budget.db --to heads.txt",),
    "budget key": ("blindsight budget key --out witness.key",),
    "budget backup": ("blindsight budget backup --ledger budget.db --out copy.db",),
    "budget export": ("blindsight budget export --ledger budget.db --out entries.csv",),
    "budget statement": (
        "blindsight budget statement holiday --ledger budget.db --out statement.html",
    ),
    "budget reconcile": (
        "blindsight budget reconcile --ledger budget.db --dataset holiday --vault release.vault",
    ),
    "serve": (
        "blindsight serve --photos ~/Pictures",
        "blindsight serve --host 192.168.1.5 --tls-cert cert.pem --tls-key key.pem",
    ),
    "serve key add": ("blindsight serve key add alice --role analyst",),
    "serve key list": ("blindsight serve key list",),
    "serve key revoke": ("blindsight serve key revoke alice",),
    "workbench doctor": ("blindsight workbench doctor",),
    "workbench backup": ("blindsight workbench backup workbench.tar",),
    "workbench restore": ("blindsight workbench restore workbench.tar --state ./restored",),
    "workbench migrate": ("blindsight workbench migrate",),
    "workbench people": ("blindsight workbench people",),
    "workbench grant": (
        "blindsight workbench grant alice --role auditor --dataset 0123456789ab",
        "blindsight workbench grant nurses --group --role searcher --dataset 0123456789ab",
    ),
    "workbench withdraw": ("blindsight workbench withdraw alice --dataset 0123456789ab",),
    "workbench log": (
        "blindsight workbench log --last 20",
        "blindsight workbench log --export log.json",
    ),
    "licences": ("blindsight licences", "blindsight licences --json"),
}
