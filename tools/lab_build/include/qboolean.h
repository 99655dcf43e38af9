// Stands in for the map compiler's header `bytebool.h`, whose type `bool` does not go together with
// that of stdbool.h, which newer versions of GLib include.
#ifndef __BYTEBOOL__
#define __BYTEBOOL__

#include <stdbool.h>

typedef enum { qfalse, qtrue } qboolean;
typedef unsigned char byte;

#endif
