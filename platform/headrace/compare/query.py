"""The query language of the runs table: text to a tree with exact places, and back. Nothing here knows the database.

    state:running preset:verl* reward>0.6 (tag:baseline or tag:best) not name~"old sums" sort:-reward

Terms stand side by side and all must hold; `or`, `not` and parentheses say otherwise. A term is `field op value` or a plain word.
`:` (or `=`) takes several values with commas: any of them. `*` in a value stands for any text. Words in double quotes stay as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from dataclasses import field as attribute

from workers.contract.errors import HeadraceError

LONGEST = 1000
MOST_TERMS = 40
MOST_SORTS = 3
DEEPEST = 12
KEYWORDS = frozenset({"and", "or", "not"})
OPERATORS = (":", "!=", "<", "<=", ">", ">=", "~", "!~")

_SPACE = re.compile(r"\s*")
_OPERATOR = re.compile(r"!=|!~|<=|>=|[:=<>~]")
_NAME = re.compile(r'(?:[^\s()":=<>~!]|!(?![=~]))+')
_BARE = re.compile(r'[^\s()",]+')
_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")

Span = tuple[int, int]


class QueryError(HeadraceError):
    """A query that cannot be understood. `start` and `end` are the places in the text, from 0, end not included."""

    def __init__(self, message: str, span: Span, *, cure: str = "", value: object = None) -> None:
        super().__init__(message, field="q", value=value, cure=cure)
        self.start, self.end = span

    def as_dict(self) -> dict[str, object]:
        return {**super().as_dict(), "start": self.start, "end": self.end}


@dataclass(frozen=True)
class Value:
    """One value. quoted: `*`, commas and `none` in it mean themselves."""

    text: str
    quoted: bool = False
    span: Span = attribute(default=(0, 0), compare=False, repr=False)

    @property
    def is_none(self) -> bool:
        return not self.quoted and self.text.lower() == "none"

    @property
    def is_any(self) -> bool:
        return not self.quoted and self.text == "*"


@dataclass(frozen=True)
class Word:
    """A plain word or quoted words: looked for in the run's name, task, preset and id."""

    text: str
    span: Span = attribute(default=(0, 0), compare=False, repr=False)


@dataclass(frozen=True)
class Compare:
    """`field op values`; more than one value only with `:` and `!=`."""

    field: str
    op: str
    values: tuple[Value, ...]
    span: Span = attribute(default=(0, 0), compare=False, repr=False)


@dataclass(frozen=True)
class Not:
    node: Node


@dataclass(frozen=True)
class All:
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Any:
    nodes: tuple[Node, ...]


Node = Word | Compare | Not | All | Any


@dataclass(frozen=True)
class Sort:
    """One `sort:` term; the first is the most important."""

    field: str
    descending: bool = False
    span: Span = attribute(default=(0, 0), compare=False, repr=False)


@dataclass(frozen=True)
class Query:
    """What a text asks for. `where` None: every run."""

    where: Node | None = None
    sort: tuple[Sort, ...] = ()


def parse(text: str) -> Query:
    """The tree of a query. Raises QueryError with the place of the fault."""
    if len(text) > LONGEST:
        raise QueryError(f"is longer than {LONGEST} characters", (LONGEST, len(text)), cure="shorten it")
    return _Parser(text).query()


def write(query: Query) -> str:
    """Text that parses to the same tree."""
    parts = [_write(query.where, top=True)] if query.where is not None else []
    parts += [f"sort:{'-' if item.descending else ''}{item.field}" for item in query.sort]
    return " ".join(parts)


def quote(text: str) -> str:
    """Text as one value or word, in quotes where it needs them. Called also where links are made."""
    plain = _BARE.fullmatch(text) and not text.startswith(("!", "~", "=", ":", "<", ">")) and text.lower() not in KEYWORDS | {"none"}
    return text if plain and "*" not in text and "\\" not in text else _quoted(text)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write(node: Node, *, top: bool = False) -> str:
    if isinstance(node, Word):
        return node.text if _NAME.fullmatch(node.text) and node.text.lower() not in KEYWORDS else _quoted(node.text)
    if isinstance(node, Compare):
        values = ",".join(_quoted(value.text) if value.quoted else value.text for value in node.values)
        return f"{node.field}{node.op}{values}"
    if isinstance(node, Not):
        inner = _write(node.node)
        return f"not {inner}"
    joined = (" " if isinstance(node, All) else " or ").join(_write(part) for part in node.nodes)
    return joined if top else f"({joined})"


class _Parser:
    """Recursive descent over the text itself: what a character means depends on whether a field or a value is expected."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.terms = 0
        self.sorts: list[Sort] = []

    def query(self) -> Query:
        where = self._any(0)
        self._skip()
        if self.at < len(self.text):
            raise QueryError("a ) without its (", (self.at, self.at + 1), cure="take it out, or put it in quotes to search for it")
        return Query(where, tuple(self.sorts))

    def _any(self, depth: int) -> Node | None:
        """Alternatives between `or`. None: nothing but sorts, or nothing at all."""
        if depth > DEEPEST:
            raise QueryError("is nested too deeply", (self.at, self.at + 1), cure=f"at most {DEEPEST} parentheses inside each other")
        parts: list[Node] = []
        last: Span | None = None
        while True:
            part = self._all(depth)
            if part is not None:
                parts.append(part)
            elif last is not None:
                raise QueryError("or has nothing after it", last, cure='give it a second term, or write "or" in quotes')
            mark = self._keyword("or")
            if mark is None:
                break
            if part is None:
                raise QueryError("or has nothing before it", mark, cure='give it a first term, or write "or" in quotes')
            last = mark
        return _joined(parts, Any)

    def _all(self, depth: int) -> Node | None:
        parts: list[Node] = []
        while True:
            self._skip()
            mark = self._keyword("and")
            if mark is not None:
                self._skip()
                if not parts or self._at_end() or self._peek("or"):
                    raise QueryError("and needs a term on both sides", mark, cure='terms side by side need no "and"')
            if self._at_end() or self._peek("or"):
                return _joined(parts, All)
            node = self._term(depth)
            if node is not None:
                parts.append(node)

    def _term(self, depth: int) -> Node | None:
        """One term. None: it was a sort, which is kept aside."""
        self._skip()
        start = self.at
        mark = self._keyword("not")
        if mark is not None:
            if depth >= DEEPEST:
                raise QueryError("is nested too deeply", mark, cure=f"at most {DEEPEST} in a row")
            self._skip()
            sorts = len(self.sorts)
            inner = None if self._at_end() or self._peek("or") else self._term(depth + 1)
            if len(self.sorts) > sorts:
                raise QueryError("not cannot be said of a sort", (start, self.at), cure="sort:-field turns the order round")
            if inner is None:
                raise QueryError("not has nothing after it", mark, cure='give it a term, or write "not" in quotes')
            return Not(inner)
        if self.text[self.at] == "(":
            return self._group(depth, start)
        self.terms += 1
        if self.terms > MOST_TERMS:
            raise QueryError(f"has more than {MOST_TERMS} terms", (start, len(self.text)), cure="ask for less at once")
        if self.text[self.at] == '"':
            return Word(self._string(), (start, self.at))
        return self._named(start)

    def _group(self, depth: int, start: int) -> Node:
        self.at += 1
        inner = self._any(depth + 1)
        self._skip()
        if self.at >= len(self.text):
            raise QueryError("a ( without its )", (start, start + 1), cure="close it, or put it in quotes to search for it")
        self.at += 1
        if inner is None:
            raise QueryError("nothing is in these parentheses", (start, self.at), cure="take them out")
        return inner

    def _named(self, start: int) -> Node | None:
        """A word, or a field with operator and values."""
        found = _NAME.match(self.text, self.at)
        if found is None:
            mark = _OPERATOR.match(self.text, self.at)
            end = mark.end() if mark else self.at + 1
            raise QueryError(
                f"a field's name is missing before {self.text[start:end]}",
                (start, end),
                cure="write for example reward>0.5, or quote the text",
            )
        self.at = found.end()
        after = _OPERATOR.match(self.text, _SPACE.match(self.text, self.at).end())  # type: ignore[union-attr]
        if after is None:
            return Word(found.group(), (start, self.at))
        name = found.group()
        if not _PLAIN_NAME.fullmatch(name):
            raise QueryError("is not a field's name", found.span(), value=name, cure="put the text in quotes to search for it")
        op = ":" if after.group() == "=" else after.group()
        self.at = after.end()
        values = self._values(after.span())
        if len(values) > 1 and op not in (":", "!="):
            raise QueryError(f"{op} takes one value", (values[1].span[0], self.at), cure=f"use {name}:a,b for any of several")
        if name.lower() == "sort":
            self._sort(op, values, (start, self.at))
            return None
        return Compare(name, op, values, (start, self.at))

    def _values(self, mark: Span) -> tuple[Value, ...]:
        found: list[Value] = []
        while True:
            if not found:
                self._skip()
            start = self.at
            if self.text[start : start + 1] == '"':
                text = self._string()
                found.append(Value(text, True, (start, self.at)))
            else:
                bare = _BARE.match(self.text, start)
                if bare is None:
                    raise QueryError("a value is missing here", (mark[0], max(start, mark[1])), cure='write one; "" asks for empty text')
                self.at = bare.end()
                found.append(Value(bare.group(), False, bare.span()))
            if self.text[self.at : self.at + 1] != ",":
                return tuple(found)
            mark = (self.at, self.at + 1)
            self.at += 1

    def _sort(self, op: str, values: tuple[Value, ...], span: Span) -> None:
        name = values[0].text.removeprefix("-")
        if op != ":" or len(values) > 1 or not _PLAIN_NAME.fullmatch(name):
            raise QueryError("sort takes one field's name", span, cure="write sort:reward, or sort:-reward for the largest first")
        if len(self.sorts) == MOST_SORTS:
            raise QueryError(f"more than {MOST_SORTS} sorts", span, cure="keep the most important ones")
        self.sorts.append(Sort(name, values[0].text.startswith("-"), span))

    def _string(self) -> str:
        start = self.at
        self.at += 1
        out: list[str] = []
        while self.at < len(self.text):
            character = self.text[self.at]
            self.at += 1
            if character == '"':
                return "".join(out)
            if character == "\\" and self.text[self.at : self.at + 1] in ('"', "\\"):
                character = self.text[self.at]
                self.at += 1
            out.append(character)
        raise QueryError('a " without its end', (start, len(self.text)), cure='close it with another "')

    def _keyword(self, word: str) -> Span | None:
        """Eats the keyword if it stands here as a word of its own and not as a field's name."""
        self._skip()
        if not self._peek(word):
            return None
        start = self.at
        self.at += len(word)
        return (start, self.at)

    def _peek(self, word: str) -> bool:
        found = _NAME.match(self.text, self.at)
        if found is None or found.group().lower() != word:
            return False
        return _OPERATOR.match(self.text, _SPACE.match(self.text, found.end()).end()) is None  # type: ignore[union-attr]

    def _at_end(self) -> bool:
        return self.at >= len(self.text) or self.text[self.at] == ")"

    def _skip(self) -> None:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]


def _joined(parts: list[Node], kind: type[All] | type[Any]) -> Node | None:
    """Nothing, the one part, or all of them; a part of the same kind is taken apart, so that the tree is written back as it was."""
    flat = [inner for part in parts for inner in (part.nodes if isinstance(part, kind) else (part,))]
    if not flat:
        return None
    return flat[0] if len(flat) == 1 else kind(tuple(flat))
