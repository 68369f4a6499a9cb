"""The built-in test model 'hashchain': bytes as tokens, no weights.

ids 0..255 are bytes, 256.. are control tokens, the rest of the 512 are reserved and never drawn.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from shared.checkpoint.byte_pairs import build_byte_pairs
from shared.checkpoint.checkpoint import Checkpoint, TextSide
from shared.checkpoint.fingerprint import digest_parts
from shared.checkpoint.spec import ModelSpec
from shared.checkpoint.tensors import NoTensors

NAME: Final = "hashchain"
VOCAB: Final = 512
SPEC: Final = ModelSpec(
    architecture=NAME,
    layers=2,
    hidden=16,
    heads=1,
    kv_heads=1,
    head_dim=16,
    ffn=16,
    vocab=VOCAB,
    context=8_192,
    rope_base=10_000.0,
    rms_eps=1e-5,
    tied=True,
)
_CONTROL: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def open_hashchain() -> Checkpoint:
    """The same model in every process; nothing is read."""
    special = {text: 256 + index for index, text in enumerate(_CONTROL)}
    reserved = [f"<|reserved_{id_}|>" for id_ in range(256 + len(_CONTROL), VOCAB)]
    special |= {text: 256 + len(_CONTROL) + index for index, text in enumerate(reserved)}
    tokens = [*_byte_alphabet(), *special]
    return Checkpoint(
        name=NAME,
        backend=NAME,
        spec=SPEC,
        text=TextSide(
            build=partial(build_byte_pairs, tokens, [], "gpt-2", special, {}),
            digest=digest_parts(b"hashchain-text-1", _TEMPLATE.encode()),
            chat_template=_TEMPLATE,
            bos_id=special["<|im_start|>"],
            eos_ids=(special["<|im_end|>"], special["<|endoftext|>"]),
            special_tokens=special,
            add_bos=False,
        ),
        tensors=NoTensors(),
        fingerprint=partial(digest_parts, b"hashchain-model-1"),
    )


def _byte_alphabet() -> list[str]:
    """Byte-level BPE's printable stand-in for each byte, in byte order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    stand_in = {byte: chr(byte) for byte in printable}
    hidden = (byte for byte in range(256) if byte not in stand_in)
    stand_in |= {byte: chr(0x100 + index) for index, byte in enumerate(hidden)}
    return [stand_in[byte] for byte in range(256)]
