#include "build.h"
void k3i_unit_open(struct k3_builder *b, enum k3_unit unit, int layer, int part) { (void)b; (void)unit; (void)layer; (void)part; }
void k3i_unit_close(struct k3_builder *b, enum k3_unit unit, int layer, int part) { (void)b; (void)unit; (void)layer; (void)part; }
void k3i_unit_reduce(struct k3_builder *b, enum k3_unit unit, int layer, int part) { (void)b; (void)unit; (void)layer; (void)part; }
