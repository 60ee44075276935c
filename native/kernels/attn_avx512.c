// Attention: AVX-512.
#if defined(__x86_64__)

#include "vec_avx512.h"

#include "attn_table.h"

V_END

const struct uma_attn_table uma_attn_avx512 = ATTN_TABLE;

#endif
