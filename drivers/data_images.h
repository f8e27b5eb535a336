/* k3_data images (inside drivers/). */
#ifndef K3_DRIVERS_DATA_IMAGES_H
#define K3_DRIVERS_DATA_IMAGES_H

#include <stdio.h>

/** argv[0] is the command. @return a status; K3_EINTR when help was printed */
int k3i_data_images(int argc, char **argv, FILE *out);

#endif
