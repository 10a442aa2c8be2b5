"""A transformer with encoder and decoder that learns to write words backwards.

    python examples/encoder_decoder.py --backend jax --mesh data=2,tensor=2

Vaswani et al., "Attention Is All You Need" (2017). The blocks of the decoder are one `Repeat`: what
it carries is the decoder's sequence; what the encoder made, and where it is padded, are the same in
every repetition.
"""

from __future__ import annotations

import mithril as ml
import numpy as np
from mithril import P
from training import command_line, train

PADDING, START, LETTERS = 0, 1, "abcdefgh"  # letters are 2 and on
LONGEST, BATCH = 5, 32
LAYERS, WIDTH, HEADS, HIDDEN = 2, 32, 4, 64


@ml.layer
def EncoderBlock(x, is_padding):
    """Mix the letters of a word; x [batch, source, features], is_padding [batch, source]."""
    attention = ml.MultiHeadAttention(HEADS, name="self")
    x = x + attention(ml.LayerNorm()(x), key_padding_mask=is_padding)
    return x + ml.FeedForward(HIDDEN, name="mlp")(ml.LayerNorm()(x))


@ml.layer
def DecoderBlock(y, memory, is_padding):
    """Mix what is written so far, then look into the memory, [batch, source, features]."""
    y = y + ml.MultiHeadAttention(HEADS, causal=True, name="self")(ml.LayerNorm()(y))
    attention = ml.MultiHeadAttention(HEADS, name="cross")
    y = y + attention(ml.LayerNorm()(y), key=memory, key_padding_mask=is_padding)
    return y + ml.FeedForward(HIDDEN, name="mlp")(ml.LayerNorm()(y))


def translator() -> ml.Model:
    """Return the model with its loss; split over `tensor` by heads and hidden features."""
    tokens = len(LETTERS) + 2
    model = ml.Model()
    for side, ids, wire in (("source", "source", "x"), ("target", "written", "y")):
        model |= ml.Embedding(tokens, WIDTH, name=f"{side}_table")(input=ids, output=f"{side}_rows")
        positions = ml.PositionalEncoding(LONGEST, learned=True, name=f"{side}_positions")
        model |= positions(input=f"{side}_rows", output=wire)
    encoder = ml.Repeat(EncoderBlock(), LAYERS, carry={"x": "output"}, name="encoder")
    model |= encoder(x="x", is_padding="is_padding", output="memory")
    decoder = ml.Repeat(DecoderBlock(), LAYERS, carry={"y": "output"}, name="decoder")
    model |= decoder(y="y", memory="memory", is_padding="is_padding", output="h")
    model |= ml.LayerNorm(name="norm")(input="h", output="normed")
    model |= ml.Linear(tokens, name="head")(input="normed", output="logits")
    model |= ml.CrossEntropy(ignore_index=PADDING)(input="logits", target="wanted", output="loss")
    model.initialize({"*_positions.weight": ml.Normal(1.0)})
    rows, columns = P(None, "tensor", None), P(None, None, "tensor")
    model.shard({f"*coder.{name}.weight": rows for name in ("*.[qkv]", "mlp.up")})
    model.shard({f"*coder.{name}.weight": columns for name in ("*.o", "mlp.down")})
    return model


def batch(step: int) -> dict[str, np.ndarray]:
    """Return words, padded in front, and what is to be written: the words backwards."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(2, LONGEST + 1, (BATCH, 1))
    is_padding = np.arange(LONGEST) < LONGEST - lengths
    source = np.where(is_padding, PADDING, rng.integers(2, len(LETTERS) + 2, is_padding.shape))
    wanted = source[:, ::-1]
    written = np.concatenate([np.full((BATCH, 1), START), wanted[:, :-1]], axis=1)
    ids = {"source": source, "written": written, "wanted": wanted}
    return {**{name: x.astype(np.int32) for name, x in ids.items()}, "is_padding": is_padding}


def spell(ids: np.ndarray) -> str:
    return "".join(LETTERS[i - 2] for i in ids if i > START)


def main() -> None:
    given = command_line(__doc__, steps=50).parse_args()
    backend = ml.open_backend(given.backend, given.mesh)
    compiled = ml.compile(translator(), backend, outputs=["loss"])
    params = train(compiled, compiled.randomize_params(0), batch, range(given.steps), rate=0.005)
    writer = ml.compile(translator(), backend, outputs=["logits"], inference=True)
    seen = batch(given.steps)
    written = np.full((BATCH, LONGEST + 1), START, np.int32)
    for position in range(LONGEST):
        inputs = {name: seen[name] for name in ("source", "is_padding")}
        made = writer.evaluate(params, {**inputs, "written": written[:, :-1]})
        written[:, position + 1] = made["logits"].numpy()[:, position].argmax(-1)
    counted = seen["wanted"] != PADDING
    for row in range(3):
        text = written[row, 1:][counted[row]]
        print(f"{spell(seen['source'][row])} backwards is {spell(text)}")
    right = (written[:, 1:] == seen["wanted"])[counted].sum()
    print(f"{right} of {counted.sum()} letters are right")


if __name__ == "__main__":
    main()
