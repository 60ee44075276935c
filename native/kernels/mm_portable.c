// Matrix products: plain C.

#include "vec_portable.h"

#include "mm_table.h"

V_END

const struct uma_mm_table uma_mm_portable = MM_TABLE;
