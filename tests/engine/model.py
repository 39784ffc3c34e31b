"""Makes a tiny Qwen3 to serve: its configuration and a tokenizer, no weights and no download.

Run by the engine's own Python, which has `tokenizers` and `transformers`; vLLM draws the weights itself
(`--load-format dummy`). What it says is noise; how long it takes over a context is not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

VOCABULARY = 4096
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "bos_token_id": 0,
    "eos_token_id": 0,
    "attention_bias": False,
}
WORDS = (
    "the run and see log for bug fix has new old key map add end try let top put get set row col sum max min "
    "now one two six ten any all few our its was are not but yet nor who how why may can did agent step"
)
CHAT_TEMPLATE = (
    "{% for tool in tools or [] %}tool: {{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}{{ call['function'] | tojson }}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def make_model(directory: Path) -> None:
    """Write the model into `directory`, made if need be."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    directory.mkdir(parents=True, exist_ok=True)
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    for name, content in (("config.json", CONFIG), ("generation_config.json", ids)):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 10, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<eos>", eos_token="<eos>", pad_token="<eos>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)


if __name__ == "__main__":
    make_model(Path(sys.argv[1]))
