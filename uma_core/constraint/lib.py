"""llguidance's C interface, exported by the shared object of its Python package.

The package's Python classes are not used: `LLTokenizer` holds the GIL for 0.2 to 0.4 s at 152k tokens, and every stream
of the daemon would pause that long. Functions called through cffi release it. Sources: parser/llguidance.h of the
version in VERSION; other versions are refused because its structs may differ.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from typing import Any

import cffi

from uma_core.errors import ErrorCode, UmaError

VERSION = b"llguidance@1.9."
_CDEF = """
typedef struct LlgTokenizer LlgTokenizer;
typedef struct LlgMatcher LlgMatcher;
typedef struct LlgParserLimits {
    size_t   max_items_in_row;
    uint64_t initial_lexer_fuel;
    uint64_t step_lexer_fuel;
    size_t   step_max_items;
    size_t   max_lexer_states;
    size_t   max_grammar_size;
    bool     precompute_large_lexemes;
    bool     verbose_errors;
} LlgParserLimits;
typedef struct LlgConstraintInit {
    const LlgTokenizer * tokenizer;
    uint32_t log_buffer_level;
    uint32_t log_stderr_level;
    bool     ff_tokens_ok;
    bool     backtrack_ok;
    LlgParserLimits limits;
} LlgConstraintInit;
typedef size_t (*LlgTokenizeFn)(const void * user_data, const uint8_t * bytes, size_t n, uint32_t * out, size_t n_out);
typedef struct LlgTokenizerInitV2 {
    size_t   struct_size;
    uint32_t vocab_size;
    uint32_t tok_eos;
    const uint32_t * token_lens;
    const uint8_t  * token_bytes;
    const char * tokenizer_json;
    bool     tokenize_assumes_string;
    LlgTokenizeFn tokenize_fn;
    bool     use_approximate_greedy_tokenize_fn;
    const void * tokenize_user_data;
    const char * const * slices;
    const uint32_t * tok_eos_extra;
    uint32_t tok_eos_extra_count;
} LlgTokenizerInitV2;

const char * llg_get_version(void);
LlgTokenizer * llg_new_tokenizer_v2(const LlgTokenizerInitV2 * init, char * error, size_t n_error);
void    llg_free_tokenizer(LlgTokenizer * tokenizer);
size_t  llg_tokenize_bytes(const LlgTokenizer * tokenizer, const uint8_t * bytes, size_t n, uint32_t * out,
                           size_t n_out);
LlgMatcher * llg_new_matcher(const LlgConstraintInit * init, const char * kind, const char * source);
LlgMatcher * llg_clone_matcher(const LlgMatcher * matcher);
void    llg_free_matcher(LlgMatcher * matcher);
const char * llg_matcher_get_error(LlgMatcher * matcher);
int32_t llg_matcher_consume_token(LlgMatcher * matcher, uint32_t token);
int32_t llg_matcher_consume_tokens(LlgMatcher * matcher, const uint32_t * tokens, size_t n);
int32_t llg_matcher_validate_tokens(LlgMatcher * matcher, const uint32_t * tokens, size_t n);
int32_t llg_matcher_compute_mask_into(LlgMatcher * matcher, uint32_t * mask, size_t n_bytes);
int32_t llg_matcher_rollback(LlgMatcher * matcher, size_t n);
int32_t llg_matcher_compute_ff_tokens(LlgMatcher * matcher, uint32_t * out, size_t n_out);
bool    llg_matcher_is_stopped(const LlgMatcher * matcher);
bool    llg_matcher_is_accepting(LlgMatcher * matcher);
"""

ffi: Any = cffi.FFI()
ffi.cdef(_CDEF)


def is_installed() -> bool:
    """Whether `load` is likely to succeed. Loads nothing."""
    return importlib.util.find_spec("llguidance") is not None


@functools.lru_cache(maxsize=1)
def load() -> Any:
    """Return the library's functions; opened on the first call. Raises: CONSTRAINTS_UNAVAILABLE."""
    try:
        from llguidance import _lib
    except ImportError as error:
        raise UmaError(ErrorCode.CONSTRAINTS_UNAVAILABLE, f"llguidance cannot be imported: {error}") from None
    try:
        lib = ffi.dlopen(_lib.__file__)
        for name in re.findall(r"\b(llg_\w+)\(", _CDEF):
            getattr(lib, name)
        version = bytes(ffi.string(lib.llg_get_version()))
    except (OSError, AttributeError) as error:
        raise UmaError(ErrorCode.CONSTRAINTS_UNAVAILABLE, f"llguidance has no C interface: {error}") from None
    if not version.startswith(VERSION):
        raise UmaError(
            ErrorCode.CONSTRAINTS_UNAVAILABLE, f"{version.decode()} is installed, {VERSION.decode()}x is needed"
        )
    return lib
