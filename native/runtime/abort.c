// Abort by flag: called once per graph node by the computing thread, so it must not need the GIL.
#include "runtime/uma_runtime.h"

bool uma_abort_cb(void * flag) {
    return *(const volatile int32_t *) flag != 0;
}
