/* Plans that are too large, refused before they are built.  The trap: pairs of token tiles make the
 * number of tasks grow with the square of the tiles, and even the tiles' tables can be more than a
 * machine holds, so the count comes before the first allocation. */
#include "../common/log.h"
#include "../common/status.h"
#include "vision_tiles.h"

/* Positions that a layer takes for each own tile at least, pairs of attention apart: forward two
 * mixes, three of MLA (KDA has more), a feed-forward part; backward two, six and two. */
enum { FORWARD_POSITIONS = 6, BACKWARD_POSITIONS = 10 };

/* The same of a tower block for each vision tile: attention, its projections and the MLP. */
enum { BLOCK_FORWARD_POSITIONS = 4, BLOCK_BACKWARD_POSITIONS = 6 };

/* Of the tower; without a bound of the patches one tile is sure. */
static double
vision_positions(const struct k3_model *model, bool backward)
{
	const struct k3_plan_options *o = &model->options;

	if (!o->vision)
		return 0;
	return (double)k3i_vision_most_tiles(o, &model->config, 1) * model->config.vision.layers *
	       (BLOCK_FORWARD_POSITIONS + (backward ? BLOCK_BACKWARD_POSITIONS : 0));
}

double
k3_plan_least_positions(const struct k3_model *model, size_t n_tokens, bool backward)
{
	const struct k3_plan_options *o = &model->options;
	const struct k3_config *c = &model->config;
	size_t rows = (n_tokens + o->mesh.cp - 1) / o->mesh.cp;
	double tiles = o->tile_tokens ? (double)((rows + o->tile_tokens - 1) / o->tile_tokens) : 1;
	double pairs = tiles * (tiles + 1) / 2 + tiles * tiles * (o->mesh.rank % o->mesh.cp);
	double mla_layers = 0;

	for (uint32_t l = 0; l < c->layers; l++)
		mla_layers += c->is_mla[l];
	return tiles * c->layers * (FORWARD_POSITIONS + (backward ? BACKWARD_POSITIONS : 0)) +
	       pairs * mla_layers * (1.0 / o->key_tiles + backward) +
	       vision_positions(model, backward);
}

int
k3_plan_check_tokens(const struct k3_model *model, size_t n_tokens, bool backward)
{
	const struct k3_plan_options *o = &model->options;
	double least = k3_plan_least_positions(model, n_tokens, backward);

	if (n_tokens > K3_MAX_TOKENS) {
		k3_error("planner",
			 "%zu tokens: a microbatch has %d at most (--tokens, more --accumulate)",
			 n_tokens, K3_MAX_TOKENS);
		return K3_ELIMIT;
	}
	if (vision_positions(model, backward) > K3_MAX_POSITIONS) {
		k3_error("planner",
			 "%llu patches in vision tiles of %u: %.0f tasks or more, a plan has %d at "
			 "most: larger tiles or fewer patches would help (--vision-patches, "
			 "--max-patches)",
			 (unsigned long long)o->max_patches, o->vision_patches,
			 vision_positions(model, backward), K3_MAX_POSITIONS);
		return K3_ELIMIT;
	}
	if (least > K3_MAX_POSITIONS) {
		k3_error("planner",
			 "%zu tokens in tiles of %u on %u cp ranks: %.0f tasks or more, a plan has "
			 "%d at most: longer tiles or fewer tokens would help (--tile-tokens, "
			 "--tokens)%s",
			 n_tokens, o->tile_tokens, o->mesh.cp, least, K3_MAX_POSITIONS,
			 o->offers & K3_OFFER_MESH ? ", or more cp ranks (--mesh cp)" : "");
		return K3_ELIMIT;
	}
	return K3_OK;
}

int
k3i_vision_check_size(const struct k3i_vtiles *v, const struct k3_builder *b)
{
	bool backward = b->what.backward;
	double tiles = (double)v->n_most, pairs = 0;

	for (size_t i = 0; i < v->n && backward; i++)
		pairs += (double)v->tile[i].n_keys;
	double each = BLOCK_FORWARD_POSITIONS + (backward ? BLOCK_BACKWARD_POSITIONS : 0);
	double least = b->config->vision.layers * (tiles * each + pairs);

	if (least <= K3_MAX_POSITIONS)
		return K3_OK;
	k3_error("planner",
		 "images in %zu vision tiles, %.0f pairs of which see each other: %.0f tasks or "
		 "more, a plan has %d at most: fewer images or larger tiles would help "
		 "(--vision-patches)",
		 v->n, pairs, least, K3_MAX_POSITIONS);
	return K3_ELIMIT;
}
