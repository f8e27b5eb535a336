/* Row loops of every register width: values against double precision, the same bits at every length
 * and alignment, nothing outside the row, NaN kept. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../codelets/vec/vec.h"
#include "held.h"

