
# a script that was changed is made into C again

cat << END >> $NGX_MAKEFILE

$RATELIMIT_LUA_H:	`echo $ngx_addon_dir/src/store/lua/*`
	mkdir -p $RATELIMIT_LUA_INC/store
	$ngx_addon_dir/src/store/lua/embed > $RATELIMIT_LUA_H.new
	mv $RATELIMIT_LUA_H.new $RATELIMIT_LUA_H

END
