// Matrix products: AVX2 with AVX-VNNI.
#if defined(__x86_64__)

#define V_HAS_VNNI
#include "vec_avx2.h"

#include "mm_table.h"

V_END

const struct uma_mm_table uma_mm_avxvnni = MM_TABLE;

#endif
