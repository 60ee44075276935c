// Compiles the rest of the file for V_TARGET, whatever the command line says, so that one build holds every instruction
// set. gcc needs the target before the intrinsics' header, clang needs it after the header and for each function.
#if !defined(__clang__)
#define V_PRAGMA(text) _Pragma(#text)
#define V_SET_TARGET(features) V_PRAGMA(GCC target(features))
V_SET_TARGET(V_TARGET)
#endif

#include "blocks.h"

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#if defined(__clang__)
#define V_PRAGMA(text) _Pragma(#text)
#define V_PUSH_TARGET(features) V_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
V_PUSH_TARGET(V_TARGET)
#define V_END _Pragma("clang attribute pop")
#else
#define V_END
#endif
