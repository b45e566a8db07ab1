"""The base of every configuration: frozen, nothing unknown accepted, errors of one line that name the nearest key."""

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_serializer, model_validator

from depthroute.errors import ConfigError

Parsed = TypeVar("Parsed", bound="Schema")


class Schema(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def numbers_are_numbers(cls, raw: Any) -> Any:
        """pydantic would take true (YAML's `yes`) for 1, and the text '1' too. An integer has 64 bits."""
        for name, value in raw.items() if isinstance(raw, dict) else ():
            field = cls.model_fields.get(name)
            if field is None or not types(field.annotation) & {int, float} or str in types(field.annotation):
                continue
            if isinstance(value, bool | str):
                raise ValueError(f"{name}: give a number, not {value!r}")
            if isinstance(value, int) and abs(value) >= 2**63:
                raise ValueError(f"{name}: {value} is out of range")
        return raw

    @classmethod
    def parse(cls: type[Parsed], raw: Mapping[str, Any], where: str = "") -> Parsed:
        """Validate plain data. `where` is the dotted key (or file) that an error message starts with."""
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            raise ConfigError(one_line(error, cls, where)) from None


def types(annotation: Any) -> set[Any]:
    """The plain types of an annotation: int and None for an optional bounded number."""
    inner = get_args(annotation)
    return set[Any]().union(*map(types, inner)) if inner else {annotation}


def nearest(word: object, choices: "list[str] | tuple[str, ...]") -> str:
    """`(did you mean 'x'? choices: ...)` for an error message."""
    close = difflib.get_close_matches(str(word), choices, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"({hint}choices: {', '.join(choices)})"


def one_line(error: ValidationError, schema: type[BaseModel], where: str = "") -> str:
    """One problem of a pydantic error, as a sentence: an unknown key first, as it may be the one that is missing."""
    rank = {"extra_forbidden": 0, "missing": 2}
    first = min(error.errors(), key=lambda problem: rank.get(problem["type"], 1))
    keys = [str(part) for part in first["loc"] if part != "[key]"]  # which is what pydantic calls a key that is wrong
    dotted = ".".join([where, *keys] if where else keys)
    if first["type"] == "extra_forbidden":
        return f"{dotted}: unknown key {nearest(keys[-1], sorted(fields_at(schema, keys[:-1])))}"
    if first["type"] == "missing":
        return f"{dotted}: missing, and it has no default"
    if first["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"{dotted}: give a mapping of keys to values, not {first['input']!r}"
    if first["type"] in ("tuple_type", "list_type"):
        return f"{dotted}: give a list, in brackets and with commas, not {first['input']!r}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    given = first["input"]
    shown = f", not {given!r}" if isinstance(given, str | int | float | bool) and first["type"] != "value_error" else ""
    return f"{dotted}: {message}{shown}" if dotted else message


def fields_at(schema: type[BaseModel], keys: list[str]) -> set[str]:
    """Names of the fields of the model found by following `keys` from `schema`; empty where a key is no model."""
    for key in keys:
        field = schema.model_fields.get(key)
        if field is None:
            return set()
        parts = (field.annotation, *getattr(field.annotation, "__args__", ()))
        schemas = [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
        if not schemas:
            return set()
        schema = schemas[0]
    return set(schema.model_fields)


class Content(BaseModel):
    """What the readers of a file that we wrote rely on: values of these very types. More keys may stand beside."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def misfit(cls, content: object) -> str | None:
        """Where parsed JSON has another shape, in words, such as `has no runs.0.seed`; None where it has this one."""
        try:
            cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"])) or "content"
            if first["type"] == "missing":
                return f"has no {key}"
            if first["type"] == "value_error":
                return f"damaged ({first['msg'].removeprefix('Value error, ')})"
            shown = repr(first["input"])
            return f"damaged ({key} is {shown if len(shown) <= 40 else f'{shown[:40]}...'})"
        return None


class Choice(Schema):
    """One way to fill an axis, written as its word (`full`) or as a mapping of that word to its option (`{blocks: 8}`).

    A class without fields is written as its lower-case name; a class with one field is written under that field's name.
    """

    @classmethod
    def word(cls) -> str:
        return next(iter(cls.model_fields), cls.__name__.lower())

    @model_serializer(mode="wrap")
    def as_written(self, handler: Any) -> Any:
        return handler(self) or self.word()


def among(*classes: type[Choice]) -> BeforeValidator:
    """Validator of a field that holds one of these choices."""
    by_word = {cls.word(): cls for cls in classes}
    forms = [f"{{{word}: ...}}" if cls.model_fields else word for word, cls in by_word.items()]

    def pick(raw: object) -> object:
        if isinstance(raw, Choice):
            return raw
        word = next(iter(raw), None) if isinstance(raw, dict) and len(raw) == 1 else raw
        if not isinstance(word, str) or word not in by_word:
            close = difflib.get_close_matches(word, by_word, n=1) if isinstance(word, str) else []
            hint = f"did you mean '{close[0]}'? " if close else ""
            raise ConfigError(f"{raw!r} is none of the choices ({hint}choices: {', '.join(forms)})")
        cls = by_word[word]
        if bool(cls.model_fields) != isinstance(raw, dict):
            raise ConfigError(f"write '{word}' as {next(form for form in forms if word in form)}")
        return cls.parse(raw if isinstance(raw, dict) else {})

    return BeforeValidator(pick)
