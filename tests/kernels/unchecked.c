// Stands for the portable tables in a program that checks only tables of other names: dispatch.c needs something to
// list. Compiling the real ones for another processor takes 16 s.
#include "kernels/kernels.h"

extern const struct uma_mm_table uma_mm_portable;
extern const struct uma_attn_table uma_attn_portable;
const struct uma_mm_table uma_mm_portable = { 0 };
const struct uma_attn_table uma_attn_portable = { 0 };
