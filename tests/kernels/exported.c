// The kernels' entry points, visible outside a shared library: in the product's objects they are hidden.
#include "kernels/kernels.h"

const struct uma_kernels * kernels(void);
const struct uma_kernels * kernels_named(const char * name);

const struct uma_kernels * kernels(void) {
    return uma_kernels();
}

const struct uma_kernels * kernels_named(const char * name) {
    return uma_kernels_named(name);
}
