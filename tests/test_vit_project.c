/* Projector of the tower against the oracle; weights are cut in uneven row blocks. */
#include <criterion/criterion.h>
#include <string.h>

#include "../common/op/vit.h"
#include "held.h"

enum { M = 9, C = 12, DT = 7 };

static float *
dump(const char *tensor)
{
	return held_input("vit_ends", tensor);
}

static struct k3_vit_project_args
project_args(void)
{
	return (struct k3_vit_project_args){.m = M, .c = C, .dt = DT, .eps = 1e-5f};
}

Test(vit_project, features_match_the_oracle, .timeout = 60)
{
	struct k3_vit_project_args a = project_args();
	float *y = held_out(M * DT), *u = held_out(M * C), *s = held_out(M * DT),
	      *rstd = held_out(M);
	struct held_task task = {{y, u, s, rstd, dump("project.z"), held_out(M * C)}, 6};

	a.w1 = held_push_weight(&task, dump("project.w1"), C, C, 5, 0);
	a.w2 = held_push_weight(&task, dump("project.w2"), DT, C, 3, 0);
	a.norm = held_push_weight(&task, dump("project.norm"), 1, DT, 1, 0);
	a.n_buf = task.n;
	k3_vit_project_fwd_cpu_f32(task.buf, &a);
	held_expect(u, "vit_ends", "project.u", 1e-6);
	held_expect(s, "vit_ends", "project.s", 1e-6);
	held_expect(rstd, "vit_ends", "project.rstd", 1e-6);
	held_expect(y, "vit_ends", "project.y", 1e-6);
	held_end();
}

static void
data_gradients(float *dz, float *du, float *ds, float *dnorm, int accumulate)
{
	struct k3_vit_project_args a = project_args();
	struct held_task task = {{dz, du, ds, dump("project.dy"), dump("project.u"),
				  dump("project.s"), dump("project.rstd")},
				 7};

	a.dnorm = held_push_weight(&task, dnorm, 1, DT, 1, accumulate);
	a.w1 = held_push_weight(&task, dump("project.w1"), C, C, 5, 0);
	a.w2 = held_push_weight(&task, dump("project.w2"), DT, C, 3, 0);
	a.norm = held_push_weight(&task, dump("project.norm"), 1, DT, 1, 0);
	a.n_buf = task.n;
	k3_vit_project_bwd_dx_cpu_f32(task.buf, &a);
}

static void
halve(float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] /= 2;
}

Test(vit_project, data_gradients_match_the_oracle, .timeout = 60)
{
	float *dz = held_out(M * C), *du = held_out(M * C), *ds = held_out(M * DT),
	      *dnorm = held_out(DT);

	data_gradients(dz, du, ds, dnorm, 0);
	held_expect(ds, "vit_ends", "project.ds", 1e-6);
	held_expect(du, "vit_ends", "project.du", 1e-6);
	held_expect(dz, "vit_ends", "project.dz", 1e-6);
	held_expect(dnorm, "vit_ends", "project.dnorm", 1e-6);
	data_gradients(dz, du, ds, dnorm, 1);
	held_expect(dz, "vit_ends", "project.dz", 1e-6);
	halve(dnorm, DT);
	held_expect(dnorm, "vit_ends", "project.dnorm", 1e-6);
	held_end();
}

static void
weight_gradients(float *dw1, float *dw2, int accumulate)
{
	struct k3_vit_project_args a = project_args();
	struct held_task task = {{dump("project.du"), dump("project.ds"), dump("project.u"),
				  dump("project.z"), held_out(M * C)},
				 5};

	a.w1 = held_push_weight(&task, dw1, C, C, 5, accumulate);
	a.w2 = held_push_weight(&task, dw2, DT, C, 3, accumulate);
	a.n_buf = task.n;
	k3_vit_project_bwd_dw_cpu_f32(task.buf, &a);
}

Test(vit_project, weight_gradients_match_the_oracle_and_are_added_when_told, .timeout = 60)
{
	float *dw1 = held_out(C * C), *dw2 = held_out(DT * C);

	weight_gradients(dw1, dw2, 0);
	held_expect(dw1, "vit_ends", "project.dw1", 1e-6);
	held_expect(dw2, "vit_ends", "project.dw2", 1e-6);
	weight_gradients(dw1, dw2, 1);
	halve(dw1, C * C);
	halve(dw2, DT * C);
	held_expect(dw1, "vit_ends", "project.dw1", 1e-6);
	held_expect(dw2, "vit_ends", "project.dw2", 1e-6);
	held_end();
}
