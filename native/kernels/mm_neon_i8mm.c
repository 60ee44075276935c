// Matrix products: NEON with 8-bit matrix products.
#if defined(__aarch64__)

#define V_HAS_I8MM
#include "vec_neon.h"

#include "mm_table.h"

V_END

const struct uma_mm_table uma_mm_neon_i8mm = MM_TABLE;

#endif
