// Matrix products: AVX2.
#if defined(__x86_64__)

#include "vec_avx2.h"

#include "mm_table.h"

V_END

const struct uma_mm_table uma_mm_avx2 = MM_TABLE;

#endif
