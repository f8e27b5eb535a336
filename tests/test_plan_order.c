/* Order of communication: hand-made sequences of two or three ranks. */
#include <criterion/criterion.h>
#include <string.h>

#include "../common/status.h"
#include "plan_case.h"

enum { MOST = 3 };

struct ranks {
	struct hand h[MOST];
	struct k3_plan *plan[MOST];
	int32_t all, pair; /* groups: every rank; ranks 0 and 1 */
};

static void
make_ranks(struct ranks *r, uint32_t n)
{
	static const uint32_t member[MOST] = {0, 1, 2};

	for (uint32_t i = 0; i < MOST; i++) {
		hand_init(&r->h[i]);
		r->all = hand_group(&r->h[i], n, member);
		r->pair = hand_group(&r->h[i], 2, member);
		r->plan[i] = &r->h[i].plan;
	}
}

/* A sound step of all ranks: gather, reduce, sum. */
static void
make_step(struct ranks *r, uint32_t n)
{
	make_ranks(r, n);
	for (uint32_t i = 0; i < n; i++) {
		hand_comm(&r->h[i], K3_OP_GATHER_PARAMS, r->all, -1, 100);
		hand_comm(&r->h[i], K3_OP_REDUCE_SCATTER_GRADS, r->all, -1, 100);
		hand_comm(&r->h[i], K3_OP_ALLREDUCE, r->all, -1, 4);
	}
}

static void
expect_order_fault(const struct ranks *r, size_t n, const char *message)
{
	capture_begin();
	int ret = k3_plan_check_order(r->plan, n);
	char *text = capture_end();

	cr_expect_eq(ret, K3_EPLAN);
	expect_message(text, message);
}

Test(plan_order, equal_sequences_pass, .timeout = 60)
{
	struct ranks r;

	make_step(&r, 3);
	cr_expect_eq(k3_plan_check_order(r.plan, 3), K3_OK);
}

Test(plan_order, two_collectives_swapped_on_one_rank_are_named, .timeout = 60)
{
	struct ranks r;

	make_step(&r, 3);
	struct k3_task swap = r.h[2].task[1];
	r.h[2].task[1] = r.h[2].task[2];
	r.h[2].task[2] = swap;
	expect_order_fault(&r, 3,
			   "group0, operation 2: rank 0 does reduce_scatter_grads (100 of type");
	expect_order_fault(&r, 3, "rank 2 does allreduce (4 of type");
}

Test(plan_order, a_dropped_collective_is_named, .timeout = 60)
{
	struct ranks r;

	make_step(&r, 2);
	r.h[1].plan.n_tasks--;
	expect_order_fault(&r, 2, "operation 3: rank 0 does allreduce (4 of type");
	expect_order_fault(&r, 2, "rank 1 does nothing");
}

Test(plan_order, a_count_that_differs_by_one_is_named, .timeout = 60)
{
	struct ranks r;

	make_step(&r, 2);
	r.h[1].task[0].count++;
	expect_order_fault(&r, 2, "operation 1: rank 0 does gather_params (100 of type");
	expect_order_fault(&r, 2, "rank 1 does gather_params (101 of type");
}

Test(plan_order, another_type_of_element_is_named, .timeout = 60)
{
	struct ranks r;

	make_step(&r, 2);
	r.h[0].task[2].comm_dtype = K3_F64;
	expect_order_fault(&r, 2, "operation 3: rank 0 does allreduce");
}

Test(plan_order, a_member_without_a_plan_is_named, .timeout = 60)
{
	struct ranks r;

	make_step(&r, 3);
	expect_order_fault(&r, 2, "communicator group0: rank 2 has no plan");
}

Test(plan_order, a_member_missing_from_the_group_is_named, .timeout = 60)
{
	struct ranks r;

	make_step(&r, 3);
	for (uint32_t i = 0; i < 3; i++)
		r.h[i].comm[0].n_members = 2;
	expect_order_fault(&r, 3,
			   "rank 2: gather_params on communicator 0, of which it is no member");
}

Test(plan_order, another_table_of_groups_is_refused, .timeout = 60)
{
	struct ranks r;

	make_step(&r, 2);
	r.h[1].plan.n_comms = 1;
	expect_order_fault(&r, 2, "rank 1 has another table of communicators");
}

Test(plan_order, a_receive_before_the_send_that_causes_it_is_a_cycle, .timeout = 60)
{
	struct ranks r;

	make_ranks(&r, 2);
	for (int i = 0; i < 2; i++) {
		hand_comm(&r.h[i], K3_OP_HALO_RECV, r.pair, 1 - i, 9);
		hand_comm(&r.h[i], K3_OP_HALO_SEND, r.pair, 1 - i, 9);
	}
	expect_order_fault(&r, 2, "rank 0 waits in halo_recv");
	expect_order_fault(&r, 2, "for rank 1; rank 1 waits in halo_recv");
	/* one of them the other way round is sound */
	r.h[1].task[0].op = K3_OP_HALO_SEND;
	r.h[1].task[1].op = K3_OP_HALO_RECV;
	cr_expect_eq(k3_plan_check_order(r.plan, 2), K3_OK);
}

Test(plan_order, two_groups_in_opposite_order_are_a_cycle, .timeout = 60)
{
	struct ranks r;

	make_ranks(&r, 3);
	for (int i = 0; i < 3; i++) {
		if (i == 1)
			hand_comm(&r.h[i], K3_OP_ALLREDUCE, r.pair, -1, 1);
		hand_comm(&r.h[i], K3_OP_ALLREDUCE, r.all, -1, 1);
		if (i == 0)
			hand_comm(&r.h[i], K3_OP_ALLREDUCE, r.pair, -1, 1);
	}
	expect_order_fault(&r, 3, "the ranks would wait for ever");
}

Test(plan_order, a_send_without_its_receive_is_found, .timeout = 60)
{
	struct ranks r;

	make_ranks(&r, 2);
	hand_comm(&r.h[0], K3_OP_HALO_SEND, r.pair, 1, 9);
	expect_order_fault(&r, 2, "rank 0 waits in halo_send");
	/* and one whose receive expects another number of elements */
	hand_comm(&r.h[1], K3_OP_HALO_RECV, r.pair, 0, 8);
	expect_order_fault(&r, 2, "rank 0 waits in halo_send");
}

Test(plan_order, a_chain_of_transfers_ends, .timeout = 60)
{
	struct ranks r;

	make_ranks(&r, 3);
	hand_comm(&r.h[0], K3_OP_HALO_SEND, r.all, 1, 9);
	hand_comm(&r.h[1], K3_OP_HALO_RECV, r.all, 0, 9);
	hand_comm(&r.h[1], K3_OP_HALO_SEND, r.all, 2, 9);
	hand_comm(&r.h[2], K3_OP_HALO_RECV, r.all, 1, 9);
	for (int i = 0; i < 3; i++)
		hand_comm(&r.h[i], K3_OP_ALLREDUCE, r.all, -1, 1);
	cr_expect_eq(k3_plan_check_order(r.plan, 3), K3_OK);
}

Test(plan_order, a_partial_proof_leaves_out_ranks_that_were_not_added, .timeout = 60)
{
	struct k3_order *order = k3_order_create(3, true);
	struct ranks r;

	make_step(&r, 3);
	cr_assert_eq(k3_order_add(order, r.plan[0], 0), K3_OK);
	cr_assert_eq(k3_order_add(order, r.plan[2], 2), K3_OK);
	cr_expect_eq(k3_order_check(order), K3_OK);
	cr_expect_eq(k3_order_tasks(order), 6);
	k3_order_set_partial(order, false);
	capture_begin();
	cr_expect_eq(k3_order_check(order), K3_EPLAN);
	expect_message(capture_end(), "rank 1 has no plan");
	k3_order_destroy(order);
}
