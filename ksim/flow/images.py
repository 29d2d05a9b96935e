"""Images of prompts, as users send them and as a model's processor prepares them."""

from collections.abc import Hashable, Iterator

from attrs import field, frozen
from attrs.validators import ge, gt


@frozen
class Image:
    """An image of `width` x `height` pixels after the first `at` tokens of a prompt's text.

    Equal `name`s mean equal pixels, in whatever request.  An image without a name is unlike any other.  If it is
    `counted`, the prompt's number of tokens has those of the image in it already.
    """

    width: int = field(validator=gt(0))
    height: int = field(validator=gt(0))
    at: int = field(default=0, validator=ge(0))
    name: Hashable = ""
    counted: bool = False


@frozen
class Patches:
    """What an encoder computes of an image: `tiles` of `rows` x `columns` patches, each tile with so many class tokens
    beside them (`extra`).  They become `embeds` tokens of the language model."""

    tiles: int
    rows: int
    columns: int
    embeds: int
    extra: int = 0

    @property
    def tokens(self) -> int:
        """How many tokens the encoder has."""
        return self.tiles * (self.rows * self.columns + self.extra)

    def sequences(self, window: int = 0) -> Iterator[tuple[int, int]]:
        """How many sequences attend to themselves, and how long they are.

        They are whole tiles, or squares of *window* x *window* patches, which are smaller at a tile's edges.
        """
        if not window:
            yield self.tiles, self.rows * self.columns + self.extra
            return
        for across, height in _cut(self.rows, window):
            for along, width in _cut(self.columns, window):
                yield self.tiles * across * along, height * width


def _cut(length: int, window: int) -> Iterator[tuple[int, int]]:
    """How many pieces *length* is cut into, and how long they are; the last one may be shorter."""
    whole, rest = divmod(length, window)
    if whole:
        yield whole, window
    if rest:
        yield 1, rest


@frozen
class PlacedImage(Image):
    """An image in the prompt that a model sees: so many `tokens` from the `start`-th on stand for it.

    vLLM's `MultiModalFeatureSpec`.  The encoder replaces `patches.embeds` of them; the others are separators, the first
    `lead` of which come before.
    """

    start: int = field(default=0, kw_only=True)
    tokens: int = field(kw_only=True)
    patches: Patches = field(kw_only=True)
    lead: int = field(default=0, kw_only=True)

    @property
    def end(self) -> int:
        return self.start + self.tokens

    @property
    def embeds(self) -> int:
        return self.patches.embeds

    def seen(self, first: int, end: int) -> bool:
        """Whether the prompt's tokens from the *first* to before *end* have any that the encoder replaces.

        Separators between tiles are taken to be behind all of them.
        """
        begin = self.start + self.lead
        return first < begin + self.embeds and begin < end
