/* Images by their grids (drivers/images.h): the rows that they take, and pixels of their own. */
#include <criterion/criterion.h>
#include <string.h>

#include "../common/status.h"
#include "../drivers/images.h"

#define TEST(name) Test(images_option, name, .timeout = 60)

static struct k3_images
read_images(struct k3_config *config, const char *text)
{
	struct k3_images images = {.text = text};

	cr_assert_eq(k3_config_preset(config, "mini"), K3_OK);
	cr_assert_eq(k3_images_read(&images, config), K3_OK);
	return images;
}

TEST(images_take_rows_one_after_the_other)
{
	struct k3_config config;
	struct k3_images images = read_images(&config, "1x4x6,3x2x2,1x8x8");
	static const uint32_t row[] = {0, 6, 7};

	cr_assert_eq(images.n, 3);
	cr_expect_arr_eq(images.row, row, sizeof(row));
	cr_expect_eq(images.tokens, 6 + 1 + 16);
	cr_expect(images.grid[1].t == 3 && images.grid[1].h == 2 && images.grid[1].w == 2);
	k3_images_fini(&images);
}

TEST(none_is_a_tower_without_images_and_no_option_is_no_tower)
{
	struct k3_config config;
	struct k3_images images = read_images(&config, "none"), text = read_images(&config, NULL);
	struct k3_plan_options with, without;

	k3_plan_options_init(&with);
	k3_plan_options_init(&without);
	k3_images_apply(&images, &with);
	k3_images_apply(&text, &without);
	cr_expect(images.n == 0 && images.tokens == 0 && with.vision && !without.vision);
	k3_images_fini(&images);
	k3_images_fini(&text);
}

TEST(each_image_has_pixels_of_its_own_that_the_seed_decides)
{
	struct k3_config config;
	struct k3_images a = read_images(&config, "1x4x6,3x2x2,1x2x2"),
			 b = read_images(&config, "1x4x6,3x2x2,1x2x2"),
			 c = read_images(&config, "1x4x6,3x2x2,1x2x2");
	enum { PATCH = 3 * 14 * 14, ALL = (24 + 12 + 4) * PATCH };

	cr_assert_eq(k3_images_fill(&a, &config, 1), K3_OK);
	cr_assert_eq(k3_images_fill(&b, &config, 1), K3_OK);
	cr_assert_eq(k3_images_fill(&c, &config, 2), K3_OK);
	cr_expect_eq(a.pixels_of[1] - a.pixels_of[0], 24 * PATCH);
	cr_expect_eq(a.pixels_of[2] - a.pixels_of[0], 36 * PATCH);
	double sum = 0;
	for (size_t i = 0; i < ALL; i++) {
		float x = a.pixels_of[0][i];
		cr_assert(x >= -1 && x < 1, "pixel %zu is %g", i, (double)x);
		sum += (double)x * (double)x;
	}
	/* a uniform distribution has mean square 1/3; four standard deviations of so many */
	cr_expect_float_eq(sum / ALL, 1.0 / 3, 4 * 0.2981 / 153.0);
	cr_expect_arr_eq(a.pixels_of[0], b.pixels_of[0], ALL * sizeof(float));
	cr_expect_neq(memcmp(a.pixels_of[0], c.pixels_of[0], ALL * sizeof(float)), 0);
	k3_images_fini(&a);
	k3_images_fini(&b);
	k3_images_fini(&c);
}
