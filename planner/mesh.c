/* Groups of a mesh by arithmetic: the table of communicators is never searched, only counted.
 *
 * Trap: a group that only some ranks create hangs the start-up, so the table depends on the sizes
 * of the mesh alone, and lists groups that this rank is no member of. */
#include "mesh_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/log.h"
#include "../common/status.h"

enum { MESH_DIM_MAX = 65536 };

static uint32_t
dim(uint32_t n)
{
	return n ? n : 1;
}

/* A group's members are first + i * step. */
static uint32_t
group_step(const struct k3_mesh *mesh, enum k3_group group)
{
	return group == K3_GROUP_REPLICATE ? dim(mesh->dp_shard) * dim(mesh->cp) : 1;
}

const char *
k3_mesh_group_name(enum k3_group group)
{
	static const char *const text[K3_N_GROUPS] = {"world", "replicate", "shard", "cp"};

	return text[group];
}

uint32_t
k3_mesh_ranks(const struct k3_mesh *mesh)
{
	return dim(mesh->dp_replicate) * dim(mesh->dp_shard) * dim(mesh->cp);
}

uint32_t
k3_mesh_group_size(const struct k3_mesh *mesh, enum k3_group group)
{
	switch (group) {
	case K3_GROUP_REPLICATE:
		return dim(mesh->dp_replicate);
	case K3_GROUP_SHARD:
		return dim(mesh->dp_shard) * dim(mesh->cp);
	case K3_GROUP_CP:
		return dim(mesh->cp);
	default:
		return k3_mesh_ranks(mesh);
	}
}

uint32_t
k3_mesh_group_rank(const struct k3_mesh *mesh, enum k3_group group, uint32_t rank)
{
	return rank / group_step(mesh, group) % k3_mesh_group_size(mesh, group);
}

/* Which of all groups of its kind a rank is in, by first rank. */
static uint32_t
group_ordinal(const struct k3_mesh *mesh, enum k3_group group, uint32_t rank)
{
	if (group == K3_GROUP_REPLICATE)
		return rank % group_step(mesh, group);
	return rank / k3_mesh_group_size(mesh, group);
}

/* The earliest kind with the same groups: its communicators are used.  Groups of one rank, where
 * they are forced to communicate, stand for larger ones and keep their own. */
static enum k3_group
group_alias(const struct k3_mesh *mesh, enum k3_group group)
{
	uint32_t size = k3_mesh_group_size(mesh, group);

	if (size == 1)
		return group;
	if (size == k3_mesh_ranks(mesh))
		return K3_GROUP_WORLD;
	if (group == K3_GROUP_CP && size == k3_mesh_group_size(mesh, K3_GROUP_SHARD))
		return K3_GROUP_SHARD;
	return group;
}

/* Does a group of this kind communicate at all? */
static bool
communicates(const struct k3_mesh *mesh, enum k3_group group)
{
	return mesh->forced || k3_mesh_group_size(mesh, group) > 1;
}

/* Communicators of a kind in the table. */
static uint32_t
n_groups(const struct k3_mesh *mesh, enum k3_group group)
{
	if (!communicates(mesh, group) || group_alias(mesh, group) != group)
		return 0;
	return k3_mesh_ranks(mesh) / k3_mesh_group_size(mesh, group);
}

int32_t
k3_mesh_comm(const struct k3_mesh *mesh, enum k3_group group)
{
	enum k3_group alias = group_alias(mesh, group);
	uint32_t base = 0;

	if (!communicates(mesh, group))
		return -1;
	for (int kind = 0; kind < (int)alias; kind++)
		base += n_groups(mesh, (enum k3_group)kind);
	return (int32_t)(base + group_ordinal(mesh, alias, mesh->rank));
}

enum k3_group
k3_mesh_comm_kind(const struct k3_mesh *mesh, int32_t comm)
{
	int kind = 0;

	while (kind + 1 < K3_N_GROUPS && k3_mesh_comm(mesh, (enum k3_group)kind) != comm)
		kind++;
	return (enum k3_group)kind;
}

static int
comm_fill(struct k3_arena *arena, const struct k3_mesh *mesh, enum k3_group group, uint32_t ordinal,
	  struct k3_comm *comm)
{
	uint32_t size = k3_mesh_group_size(mesh, group), step = group_step(mesh, group);
	uint32_t first = group == K3_GROUP_REPLICATE ? ordinal : ordinal * size;

	comm->member = k3i_arena_alloc(arena, size * sizeof(*comm->member));
	if (!comm->member)
		return K3_ENOMEM;
	comm->n_members = size;
	for (uint32_t i = 0; i < size; i++)
		comm->member[i] = first + i * step;
	if (group == K3_GROUP_WORLD)
		snprintf(comm->name, sizeof(comm->name), "%s", k3_mesh_group_name(group));
	else
		snprintf(comm->name, sizeof(comm->name), "%s%u", k3_mesh_group_name(group),
			 ordinal);
	return K3_OK;
}

int
k3i_mesh_comms(struct k3_arena *arena, const struct k3_mesh *mesh, struct k3_comm **comm,
	       size_t *n_comms)
{
	size_t n = 0;

	for (int kind = 0; kind < K3_N_GROUPS; kind++)
		n += n_groups(mesh, (enum k3_group)kind);
	*n_comms = n;
	*comm = NULL;
	if (!n)
		return K3_OK;
	*comm = k3i_arena_alloc(arena, n * sizeof(**comm));
	if (!*comm)
		return K3_ENOMEM;
	n = 0;
	for (int kind = 0; kind < K3_N_GROUPS; kind++)
		for (uint32_t i = 0; i < n_groups(mesh, (enum k3_group)kind); i++) {
			int ret = comm_fill(arena, mesh, (enum k3_group)kind, i, &(*comm)[n++]);

			if (ret)
				return ret;
		}
	return K3_OK;
}

/* Takes "key=value" of len characters into the mesh. */
static int
parse_pair(const char *text, size_t len, struct k3_mesh *mesh)
{
	const struct {
		const char *key;
		uint32_t *value;
	} key[] = {
		{"dp_replicate", &mesh->dp_replicate},
		{"dp_shard", &mesh->dp_shard},
		{"cp", &mesh->cp},
	};
	const char *equal = memchr(text, '=', len);

	for (size_t i = 0; equal && i < sizeof(key) / sizeof(key[0]); i++) {
		size_t key_len = (size_t)(equal - text);
		unsigned long value = 0;
		char *end;

		if (strlen(key[i].key) != key_len || strncmp(key[i].key, text, key_len))
			continue;
		if (*key[i].value) {
			k3_log(K3_LOG_ERROR, "planner", "--mesh: %s is given twice", key[i].key);
			return K3_EINVAL;
		}
		if (equal[1] >= '0' && equal[1] <= '9')
			value = strtoul(equal + 1, &end, 10);
		if (!value || value > MESH_DIM_MAX || end != text + len) {
			k3_log(K3_LOG_ERROR, "planner",
			       "--mesh: %.*s: allowed is an integer from 1 to %d", (int)len, text,
			       MESH_DIM_MAX);
			return K3_EINVAL;
		}
		*key[i].value = (uint32_t)value;
		return K3_OK;
	}
	k3_log(K3_LOG_ERROR, "planner",
	       "--mesh: \"%.*s\": allowed are dp_replicate=A, dp_shard=B, cp=C", (int)len, text);
	return K3_EINVAL;
}

int
k3_mesh_parse(struct k3_mesh *mesh, const char *text)
{
	memset(mesh, 0, sizeof(*mesh));
	for (;;) {
		size_t len = strcspn(text, ",");
		int ret = parse_pair(text, len, mesh);

		if (ret)
			return ret;
		if (!text[len])
			break;
		text += len + 1;
	}
	mesh->dp_replicate = dim(mesh->dp_replicate);
	mesh->dp_shard = dim(mesh->dp_shard);
	mesh->cp = dim(mesh->cp);
	if ((uint64_t)mesh->dp_replicate * mesh->dp_shard * mesh->cp > MESH_DIM_MAX) {
		k3_log(K3_LOG_ERROR, "planner", "--mesh: more than %d ranks", MESH_DIM_MAX);
		return K3_EINVAL;
	}
	return K3_OK;
}
