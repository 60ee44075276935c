// Attention: plain C.

#include "vec_portable.h"

#include "attn_table.h"

V_END

const struct uma_attn_table uma_attn_portable = ATTN_TABLE;
