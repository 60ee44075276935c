// Matrix products: AVX-512 with VNNI.
#if defined(__x86_64__)

#define V_HAS_VNNI
#include "vec_avx512.h"

#include "mm_table.h"

V_END

const struct uma_mm_table uma_mm_avx512vnni = MM_TABLE;

#endif
