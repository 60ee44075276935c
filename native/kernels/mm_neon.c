// Matrix products: NEON.
#if defined(__aarch64__)

#include "vec_neon.h"

#include "mm_table.h"

V_END

const struct uma_mm_table uma_mm_neon = MM_TABLE;

#endif
