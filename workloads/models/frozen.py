"""Specs: frozen values that refuse keys which nobody knows, and name what may have been meant."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from simcore.records import dataclass
from workloads.models.checked import refused

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

#: Whole numbers as dimensions of models and layouts go: beyond them flops and bytes of a step leave 64-bit
#: integers, or a schedule any memory.  A ``...OrNone`` may be 0, for what is not there.
Layers = Annotated[int, Field(gt=0, le=4096)]
LayersOrNone = Annotated[int, Field(ge=0, le=4096)]
Width = Annotated[int, Field(gt=0, le=1 << 22)]
WidthOrNone = Annotated[int, Field(ge=0, le=1 << 22)]
Size = Annotated[int, Field(gt=0, le=4096)]
SizeOrNone = Annotated[int, Field(ge=0, le=4096)]
Pixels = Annotated[int, Field(gt=0, le=1 << 16)]
Heads = Annotated[int, Field(gt=0, le=1 << 14)]
HeadsOrNone = Annotated[int, Field(ge=0, le=1 << 14)]
Rows = Annotated[int, Field(gt=0, le=1 << 24)]
RowsOrNone = Annotated[int, Field(ge=0, le=1 << 24)]


class _Kind(ModelMetaclass):
    """Specs that are made in Python are refused as those in files are: by an InputError."""

    def __call__(self, *args: Any, **values: Any) -> Any:
        try:
            return super().__call__(*args, **values)
        except ValidationError as error:
            raise refused(cast("type[BaseModel]", self), error, self.__name__) from None


class Frozen(BaseModel, metaclass=_Kind):
    """A spec with the keys that it declares."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Extensible(BaseModel, metaclass=_Kind):
    """A spec with the keys that it declares and those of what has been registered for it."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False, defer_build=True)

    @classmethod
    def further(cls) -> Mapping[str, Any]:
        """Type of the value of each further key."""
        return {}

    @model_validator(mode="before")
    @classmethod
    def _with_further(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.keys() <= cls.model_fields.keys():
            return values
        found, wrong, types = dict(values), list[InitErrorDetails](), cls.further()
        for key, value in values.items():
            if key in cls.model_fields:
                continue
            if key not in types:
                wrong.append(InitErrorDetails(type="extra_forbidden", loc=(key,), input=value))
                continue
            try:
                found[key] = TypeAdapter(types[key]).validate_python(value)
            except ValidationError as error:
                wrong += [
                    InitErrorDetails(
                        type=one["type"], loc=(key, *one["loc"]), input=one["input"], ctx=one.get("ctx", {})
                    )
                    for one in error.errors()
                ]
        if wrong:
            raise ValidationError.from_exception_data(cls.__name__, wrong)
        return found


@dataclass(frozen=True)
class OneOf:
    """Annotation of a text that has to be one of ``names``, which may grow."""

    names: Collection[str]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """As pydantic asks for it."""
        return core_schema.no_info_before_validator_function(self._checked, handler(source))

    def _checked(self, value: Any) -> str:
        if isinstance(value, str) and value in self.names:
            return value
        *others, last = map(repr, self.names)
        known = f"{', '.join(others)} or {last}"
        raise PydanticCustomError(
            "unknown_name", "Input should be {known}", {"known": known, "names": list(self.names)}
        )
