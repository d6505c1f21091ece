"""What the query language needs of SQL and Django has no word for, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from typing import Any

from django.db.models import BooleanField, Expression, FloatField, Func, TextField, Value


def like(text: str) -> str:
    """A LIKE pattern of a value in which `*` stands for any text."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")


def literally(text: str) -> str:
    """A LIKE pattern of a value in which `*` means itself."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


class Like(Func):
    """text LIKE pattern, whatever the case (SQLite: of ASCII letters). False, not NULL, where there is no text."""

    output_field = BooleanField()
    template = "(COALESCE(%(expressions)s ESCAPE '\\', FALSE))"
    arg_joiner = " LIKE "

    def __init__(self, text: Any, pattern: str, **extra: Any) -> None:
        super().__init__(text, Value(pattern), **extra)

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, arg_joiner="::text ILIKE ", **extra)


class _OfJson(Func):
    """A Func over a JSON column and a path of plain keys, `a.b`, which the caller has checked for its characters."""

    def __init__(self, column: str, path: str, *more: Any, **extra: Any) -> None:
        self.path = path.split(".") if path else []
        super().__init__(column, *more, **extra)

    def _paths(self) -> tuple[str, str]:
        return "$" + "".join(f'."{key}"' for key in self.path), "{" + ",".join(self.path) + "}"

    def _sql(self, compiler: Any, template: str, path: str) -> tuple[str, list[Any]]:
        """`template` with {column} and {path} filled in, each as often as it stands there, and its parameters in that order."""
        column, of_column = compiler.compile(self.source_expressions[0])
        pieces = template.replace("{path}", "\0").replace("{column}", "\1")
        params: list[Any] = []
        for character in pieces:
            params += [path] if character == "\0" else of_column if character == "\1" else []
        return pieces.replace("\0", "%s").replace("\1", column), params


class JsonNumber(_OfJson):
    """The number at a path of a JSON column; NULL where something else is there."""

    output_field = FloatField()

    def as_sql(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, list[Any]]:
        template = "(CASE WHEN JSON_TYPE({column}, {path}) IN ('integer', 'real') THEN CAST(JSON_EXTRACT({column}, {path}) AS REAL) END)"
        return self._sql(compiler, template, self._paths()[0])

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, list[Any]]:
        template = (
            "(CASE WHEN jsonb_typeof({column} #> {path}::text[]) = 'number' THEN ({column} #>> {path}::text[])::double precision END)"
        )
        return self._sql(compiler, template, self._paths()[1])


class JsonText(_OfJson):
    """What stands at a path of a JSON column as text: booleans as true and false, lists and objects as JSON; NULL for nothing."""

    output_field = TextField()

    def as_sql(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, list[Any]]:
        template = (
            "(CASE JSON_TYPE({column}, {path}) WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' "
            "ELSE CAST(JSON_EXTRACT({column}, {path}) AS TEXT) END)"
        )
        return self._sql(compiler, template, self._paths()[0])

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, list[Any]]:
        return self._sql(compiler, "({column} #>> {path}::text[])", self._paths()[1])


class JsonListHas(_OfJson):
    """Whether an entry of the JSON list at a path is LIKE the pattern. False where there is no list."""

    output_field = BooleanField()

    def __init__(self, column: str, path: str, pattern: str, **extra: Any) -> None:
        self.pattern = pattern
        super().__init__(column, path, **extra)

    def as_sql(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, list[Any]]:
        template = "EXISTS(SELECT 1 FROM json_each({column}, {path}) AS entry WHERE entry.value LIKE %s ESCAPE '\\')"
        sql, params = self._sql(compiler, template, self._paths()[0])
        return sql, [*params, self.pattern]

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> tuple[str, list[Any]]:
        template = (
            "EXISTS(SELECT 1 FROM jsonb_array_elements_text(CASE WHEN jsonb_typeof({column} #> {path}::text[]) = 'array' "
            "THEN {column} #> {path}::text[] ELSE '[]'::jsonb END) AS entry(value) WHERE entry.value ILIKE %s ESCAPE '\\')"
        )
        sql, params = self._sql(compiler, template, self._paths()[1])
        return sql, [*params, self.pattern]


def always(answer: bool) -> Expression:
    """A condition that holds for every row or for none."""
    return Func(Value(1), Value(1 if answer else 0), template="(%(expressions)s)", arg_joiner=" = ", output_field=BooleanField())
