// Matrix products: NEON with dot products.
#if defined(__aarch64__)

#define V_HAS_DOTPROD
#include "vec_neon.h"

#include "mm_table.h"

V_END

const struct uma_mm_table uma_mm_neon_dotprod = MM_TABLE;

#endif
