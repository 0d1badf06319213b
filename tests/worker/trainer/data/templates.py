"""Short chat templates with the features of real templates."""

from __future__ import annotations

LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}<|im_end|>\n\n"
    "{{ m['content'] | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_end|>\n\n{% endif %}"
)
"""The template adds BOS and trims the content."""

GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}"
    "<|im_start|>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
"""The template has no system role and calls the assistant "model"."""

MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "[INST] {{ m['content'] }} [/INST]{% elif m['role'] == 'assistant' %}"
    " {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
"""The template has no generation prompt."""

QWEN3 = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' %}"
    "{% set think = m['content'].split('</think>')[0].split('<think>')[-1].strip()"
    " if '</think>' in m['content'] else '' %}"
    "{% if loop.index0 > ns.last %}<think>\n{{ think }}\n</think>\n\n{% endif %}"
    "{{ m['content'].split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The template drops the thinking of earlier turns and adds an empty one to the last turn."""

DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}<user>{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}<assistant>{{ m['content'].split('</think>')[-1] }}</s>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
)
"""The generation prompt opens a think block that earlier turns do not have."""

GENERATION = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}\n"
    "{% else %}{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Marks what the assistant says."""

COUNTING = (
    "[{{ messages | length }}]{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
)
"""The text begins with the number of messages. Therefore no text is a prefix of another, and
nothing can be proven."""

COUNTING_MARKED = "[{{ messages | length }}]" + GENERATION
"""Like the previous template, but it marks the assistant's tokens."""
