// Matrix products: AVX-512 without VNNI.
#if defined(__x86_64__)

#include "vec_avx512.h"

#include "mm_table.h"

V_END

const struct uma_mm_table uma_mm_avx512 = MM_TABLE;

#endif
