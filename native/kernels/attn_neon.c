// Attention: NEON.
#if defined(__aarch64__)

#include "vec_neon.h"

#include "attn_table.h"

V_END

const struct uma_attn_table uma_attn_neon = ATTN_TABLE;

#endif
